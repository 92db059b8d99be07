#include "transport/transports.h"

#include <algorithm>

#include "base/joined.h"
#include "base/log.h"
#include "base/packing.h"

namespace hetcomm {
namespace {

constexpr int64_t kTypicalBytes = 1 << 20;  // of a message, to compare transports

std::vector<TransportId> parts_of(const TransportKind& kind, const LinkEnd& end) {
  if (kind.parts != nullptr) return kind.parts(end);
  return {kind.id(end)};
}

// Whether a rank has published all addresses that its end of such a link needs.
bool has_addresses(const TransportKind& kind, const LinkEnd& end) {
  const auto parts = parts_of(kind, end);
  return !parts.empty() && std::all_of(parts.begin(), parts.end(), [&](const TransportId& part) {
    return end.addresses.contains(part.text());
  });
}

bool carries(const TransportKind& kind, const LinkEnd& end) {
  return std::all_of(end.memory.begin(), end.memory.end(), [&](MemoryKind memory) {
    return std::find(kind.memory.begin(), kind.memory.end(), memory) != kind.memory.end();
  });
}

int64_t time_of(const LinkCost& cost) {
  return cost.latency + kTypicalBytes * 1'000'000'000 / std::max<int64_t>(cost.bandwidth, 1);
}

std::string address_of(const TransportKind& kind, const LinkEnd& end) {
  if (kind.parts == nullptr) return end.addresses.at(kind.id(end).text());
  std::vector<std::string> addresses;
  for (const TransportId& part : kind.parts(end)) {
    addresses.push_back(end.addresses.at(part.text()));
  }
  return pack_addresses(addresses);
}

}  // namespace

Transports::Transports(const std::vector<std::string>& kinds, std::vector<NetworkDevice> devices)
    : devices_(std::move(devices)) {
  for (const std::string& name : kinds) {
    const TransportKind& kind = transport_kind(name);
    try {
      for (const TransportId& id : parts_of(kind, {})) get(id);
      kinds_.push_back(&kind);
    } catch (const Error& error) {
      if (why_none_.ok()) why_none_ = error.status();
    }
  }
  if (polled_.empty()) throw Error(why_none_);
  // In the registry's order, so that all ranks choose alike.
  std::vector<const TransportKind*> sorted = transport_kinds();
  std::erase_if(sorted, [&](const TransportKind* kind) {
    return std::find(kinds_.begin(), kinds_.end(), kind) == kinds_.end();
  });
  kinds_ = std::move(sorted);
  if (!why_none_.ok()) log(LogLevel::info, why_none_.text());
  main_ = polled_.front();
}

Transports::~Transports() {
  // Parts first: a striped transport owns the requests of its parts.
  for (Made& made : made_) made.transport.reset();
}

void Transports::watch_by(std::function<void(int)> watch) {
  watch_ = std::move(watch);
  for (Transport* transport : polled_) watch_(transport->event_fd());
}

bool Transports::stripes() const {
  return std::any_of(kinds_.begin(), kinds_.end(),
                     [](const TransportKind* kind) { return kind->parts != nullptr; });
}

Transport& Transports::part(const TransportId& id) {
  for (Made& made : made_) {
    if (made.id == id) return *made.transport;
  }
  auto transport = transport_kind(id.kind).make(id, *this);
  return *made_.emplace_back(Made{id, std::move(transport)}).transport;
}

Transport& Transports::get(const TransportId& id) {
  Transport& transport = part(id);
  if (std::find(polled_.begin(), polled_.end(), &transport) == polled_.end()) {
    if (watch_) watch_(transport.event_fd());
    polled_.push_back(&transport);
  }
  return transport;
}

std::string Transports::addresses(bool same_host) const {
  Packer packer;
  for (const Made& made : made_) {
    if (made.id == transport_kind(made.id.kind).id({})) {
      packer.put(made.id.text()).put(made.transport->address(same_host));
    }
  }
  return packer.take();
}

std::string Transports::addresses(const std::vector<LinkEnd>& ends) {
  Packer packer;
  std::vector<TransportId> packed;
  for (const LinkEnd& end : ends) {
    for (const TransportKind* kind : kinds_) {
      if (kind->id(end) == kind->id({})) continue;  // packed by addresses(same_host)
      for (const TransportId& id : parts_of(*kind, end)) {
        if (std::find(packed.begin(), packed.end(), id) != packed.end()) continue;
        Transport& transport = kind->parts == nullptr ? get(id) : part(id);
        packer.put(id.text()).put(transport.address(/*same_host=*/false));
        packed.push_back(id);
      }
    }
  }
  return packer.take();
}

Route Transports::route(const LinkEnd& here, const LinkEnd& there) {
  if (main_ == nullptr) return {};
  const TransportKind* best = nullptr;
  for (const TransportKind* kind : kinds_) {
    if (!has_addresses(*kind, here) || !has_addresses(*kind, there)) continue;
    if (!carries(*kind, here) || !carries(*kind, there) || !kind->viable(here, there)) continue;
    if (best == nullptr || time_of(kind->cost(here)) < time_of(best->cost(here))) best = kind;
  }
  if (best != nullptr) return {&get(best->id(here)), address_of(*best, there), ""};
  std::vector<std::string> ours, theirs, remedies;
  for (const TransportKind* kind : kinds_) ours.emplace_back(kind->name);
  for (const TransportKind* kind : transport_kinds()) {
    if (has_addresses(*kind, there)) theirs.emplace_back(kind->name);
    if (kind->remedy != nullptr) remedies.emplace_back(kind->remedy);
  }
  return {main_, "",
          "expected a transport that both ranks have; got " + joined(ours) + " here and " +
              (theirs.empty() ? "none" : joined(theirs)) + " there; see the log there; " +
              joined(remedies)};
}

bool Transports::progress() {
  bool moved = false;
  for (Transport* transport : polled_) moved |= transport->progress();
  return moved;
}

bool Transports::prepare_to_sleep() {
  return std::all_of(polled_.begin(), polled_.end(),
                     [](Transport* transport) { return transport->prepare_to_sleep(); });
}

}  // namespace hetcomm
