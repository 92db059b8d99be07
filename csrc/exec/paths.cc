#include "exec/paths.h"

#include <algorithm>
#include <bit>

namespace hetcomm {

Paths::Paths(int rank, std::vector<PeerAddress> peers, std::unique_ptr<Island> island,
             std::shared_ptr<Device> device, Status no_transport)
    : rank_(rank),
      peers_(std::move(peers)),
      streams_(device ? std::make_unique<Streams>(std::move(device)) : nullptr),
      island_(std::move(island)),
      no_transport_(std::move(no_transport)),
      links_(peers_.size()) {
  for (size_t peer = 0; peer < peers_.size(); ++peer) {
    const PeerAddress& to = peers_[peer];
    if (static_cast<int>(peer) == rank_ || to.route.address.empty()) continue;
    links_[peer] = to.route.transport->connect(to.route.address, static_cast<int>(peer));
  }
}

LinkOffers Paths::offers() const {
  std::vector<std::string> offers;
  for (const auto& link : links_) offers.push_back(link ? link->offer() : "");
  return LinkOffers(offers);
}

Link* Paths::link(int peer, Status& status) {
  const Route& route = peers_[peer].route;
  if (route.transport == nullptr) {
    status = no_transport_;
    return nullptr;
  }
  if (route.address.empty()) {
    status = Status(Code::transport,
                    "no transport leads to rank " + std::to_string(peer) + ": " + route.why_none,
                    rank_, peer);
    return nullptr;
  }
  try {
    opened_ = true;
    links_[peer]->open();
  } catch (const Error& error) {
    status = error.status();
    return nullptr;
  }
  return links_[peer].get();
}

int Paths::sender(uint64_t body) const {
  const uint32_t first = peers_[rank_].first_sender;
  const uint64_t wanted = tag(first, body);
  // A multiple of the block's length is its first number, so the mask leaves out the rank alone.
  const auto block = std::bit_ceil(static_cast<uint32_t>(peers_.size()));
  const uint64_t mask = ~(compared(true) | tag(block - 1, 0));
  const Transport* asked = nullptr;
  for (const PeerAddress& peer : peers_) {
    if (peer.route.transport == nullptr || peer.route.transport == asked) continue;
    asked = peer.route.transport;
    if (const auto found = asked->arrived(wanted, mask))
      return static_cast<int>(sender_of(*found) - first);
  }
  return -1;
}

bool Paths::arrived(int from, uint64_t body) const {
  const Transport* transport = peers_[from].route.transport;
  return transport && transport->arrived(recv_tag(from, body), ~compared(true));
}

bool Paths::lost(int peer, size_t stripe) const {
  if (!links_[peer]) return false;
  const std::vector<size_t> stripes = links_[peer]->lost_stripes();
  return std::find(stripes.begin(), stripes.end(), stripe) != stripes.end();
}

std::string Paths::describe(int peer) const {
  const std::string carriers = links_[peer] ? links_[peer]->describe() : "";
  return carriers.empty() ? "not connected yet" : carriers;
}

void Paths::close(bool flush) {
  for (auto& link : links_) {
    if (link) link->close(flush);
  }
}

bool Paths::closed() const {
  for (const auto& link : links_) {
    if (link && !link->closed()) return false;
  }
  return true;
}

}  // namespace hetcomm
