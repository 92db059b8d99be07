#include "transport/striped/striped.h"

#include <algorithm>
#include <list>
#include <numeric>
#include <utility>

#include "base/deadline.h"
#include "base/events.h"
#include "base/packing.h"

namespace hetcomm {
namespace {

// Dividing a message must save this time, because each part costs both ends calls and polls.
// Messages of 32 KiB over two unlimited links took 46 us divided and 18 us whole, on two cores.
// With 1 and 2 Gbit/s that is a message of 38 KB, with two of 10 Gbit/s one of 125 KB.
constexpr int64_t kLeastSavedMicroseconds = 50;
// Parts begin at multiples of a page.
constexpr size_t kAlignment = 4096;
// Idle stripes beyond the first are polled every so many turns, or after this time, because peers
// may connect or leave. After a divided message all stripes are polled so many times in a row,
// because the end of the message may still be in flight.
constexpr uint32_t kPollEvery = 64, kPollsAfterTraffic = 1024;
constexpr auto kPollInterval = std::chrono::milliseconds(100);

// The links of all stripes to one peer.
struct StripeLinks {
  std::vector<std::unique_ptr<Link>> links;
  Status failure;  // of the first broken stripe; later messages fail with it
};

// A divided message in flight.
struct Divided {
  Request* whole = nullptr;
  std::vector<Request> parts;
  std::vector<size_t> sizes;           // of the parts
  std::shared_ptr<StripeLinks> links;  // a send's; null for a receive
  uint64_t tag = 0;                    // of the parts of a receive
  bool cancelled = false;

  bool done() const {
    return std::all_of(parts.begin(), parts.end(), [](const Request& part) { return part.done; });
  }
};

// Shared by a transport and its links.
struct Shared {
  std::list<Divided> divided;  // at fixed addresses, which the parts' requests need
  std::vector<std::weak_ptr<StripeLinks>> closing;
  uint32_t polls_due = kPollsAfterTraffic;  // of all stripes

  Divided& begin(Request& whole, const std::vector<size_t>& sizes) {
    whole = Request();
    whole.done = false;
    polls_due = kPollsAfterTraffic;
    Divided& made = divided.emplace_back();
    made.whole = &whole;
    made.sizes = sizes;
    made.parts.resize(sizes.size());
    return made;
  }
};

class StripedLink : public Link {
 public:
  StripedLink(std::shared_ptr<Shared> shared, StripeLinks links, std::vector<int64_t> bandwidths)
      : shared_(std::move(shared)),
        links_(std::make_shared<StripeLinks>(std::move(links))),
        bandwidths_(std::move(bandwidths)) {}
  ~StripedLink() override { close(false); }

  void send(uint64_t tag, const void* data, size_t bytes, MemoryKind memory,
            Request& request) override {
    if (!links_->failure.ok()) {
      request = Request();
      request.status = links_->failure;
      return;
    }
    std::vector<size_t> sizes = divide(bytes, bandwidths_);
    if (sizes.size() == 1) return links_->links.front()->send(tag, data, bytes, memory, request);
    Divided& divided = shared_->begin(request, sizes);
    divided.links = links_;
    const auto* from = static_cast<const std::byte*>(data);
    for (size_t stripe = 0; stripe < sizes.size(); from += sizes[stripe], ++stripe) {
      links_->links[stripe]->send(tag | kPartTag, from, sizes[stripe], memory,
                                  divided.parts[stripe]);
    }
  }

  void consume(size_t bytes) override {
    const std::vector<size_t> sizes = divide(bytes, bandwidths_);
    for (size_t stripe = 0; stripe < sizes.size(); ++stripe)
      links_->links[stripe]->consume(sizes[stripe]);
  }
  std::string offer() const override {
    Packer packer;
    for (auto& link : links_->links) packer.put(link->offer());
    return packer.take();
  }
  void counter(const std::string& theirs, uint64_t spread) override {
    Unpacker from(theirs);
    for (auto& link : links_->links) link->counter(from.text(), spread);
  }
  void open() override {
    for (auto& link : links_->links) link->open();
  }
  void close(bool flush) override {
    for (auto& link : links_->links) link->close(flush);
    shared_->closing.push_back(links_);
  }
  bool closed() const override {
    return std::all_of(links_->links.begin(), links_->links.end(),
                       [](auto& link) { return link->closed(); });
  }
  std::string describe() const override {
    std::string text;
    for (auto& link : links_->links) text += (text.empty() ? "" : " + ") + link->describe();
    return links_->links.front()->describe().empty() ? "" : text;
  }

 private:
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<StripeLinks> links_;
  std::vector<int64_t> bandwidths_;
};

class Striped : public Transport {
 public:
  explicit Striped(const std::vector<StripeTransport>& stripes) {
    for (const StripeTransport& stripe : stripes) {
      transports_.push_back(stripe.transport);
      bandwidths_.push_back(stripe.bandwidth);
      add_to_epoll(events_, stripe.transport->event_fd());
    }
  }

  std::string name() const override { return "striped"; }
  std::string version() const override { return first().version(); }
  std::string why_not_direct(const MemorySample& sample,
                             const std::string& rdma_device) const override {
    return first().why_not_direct(sample, rdma_device);
  }
  std::string address(bool same_host) const override {
    std::vector<std::string> addresses;
    for (Transport* transport : transports_) addresses.push_back(transport->address(same_host));
    return pack_addresses(addresses);
  }
  std::unique_ptr<Link> connect(const std::string& address, int peer_rank) override;
  void recv(uint64_t tag, uint64_t mask, void* data, size_t bytes, MemoryKind memory,
            Request& request) override;
  std::optional<uint64_t> arrived(uint64_t tag, uint64_t mask) const override {
    return first().arrived(tag, mask);  // every message has a part here
  }
  void cancel(Request& request) override;
  bool progress() override;
  int event_fd() const override { return events_; }
  bool prepare_to_sleep() override;

 private:
  Transport& first() const { return *transports_.front(); }
  // Cancels the message once one of its parts has failed.
  void cancel_hopeless(Divided& divided);
  void cancel_parts(Divided& divided);
  void complete(const Divided& divided) const;
  bool collect();
  // False if the receive matched a whole message, so no other parts come.
  bool is_part(const Divided& divided, const Request& part) const {
    return divided.links || (part.tag & kPartTag) != 0;
  }
  // False for a failed part, and for a part of a message of another size or call.
  static bool is_expected(const Divided& divided, size_t part);

  std::vector<Transport*> transports_;
  std::vector<int64_t> bandwidths_;
  const Descriptor events_ = make_epoll();
  uint32_t turns_ = 0;
  Clock::time_point last_full_poll_;  // of all stripes
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

std::unique_ptr<Link> Striped::connect(const std::string& address, int peer_rank) {
  StripeLinks made;
  try {
    Unpacker from(address);
    for (Transport* transport : transports_) {
      made.links.push_back(transport->connect(from.text(), peer_rank));
    }
    from.end();
  } catch (const Error& error) {
    for (auto& link : made.links) link->close(false);
    if (error.status().code() != Code::invalid_argument) throw;
    throw Error(
        Status(Code::transport, "link address: " + std::string(error.what()), -1, peer_rank));
  }
  return std::make_unique<StripedLink>(shared_, std::move(made), bandwidths_);
}

void Striped::recv(uint64_t tag, uint64_t mask, void* data, size_t bytes, MemoryKind memory,
                   Request& request) {
  std::vector<size_t> sizes = divide(bytes, bandwidths_);
  if (sizes.size() == 1) return first().recv(tag, mask, data, bytes, memory, request);
  Divided& divided = shared_->begin(request, sizes);
  divided.tag = tag | kPartTag;
  auto* into = static_cast<std::byte*>(data);
  for (size_t stripe = 0; stripe < sizes.size(); into += sizes[stripe], ++stripe) {
    transports_[stripe]->recv(divided.tag, mask, into, sizes[stripe], memory,
                              divided.parts[stripe]);
  }
}

void Striped::cancel(Request& request) {
  for (Divided& divided : shared_->divided) {
    if (divided.whole == &request) return cancel_parts(divided);
  }
  first().cancel(request);
}

bool Striped::is_expected(const Divided& divided, size_t part) {
  const Request& request = divided.parts[part];
  if (!request.status.ok()) return false;
  return divided.links || (request.tag == divided.tag && request.bytes == divided.sizes[part]);
}

void Striped::cancel_parts(Divided& divided) {
  if (std::exchange(divided.cancelled, true)) return;
  for (size_t part = 0; part < divided.parts.size(); ++part) {
    if (divided.links) {
      divided.links->links[part]->close(false);
    } else {
      transports_[part]->cancel(divided.parts[part]);
    }
  }
  if (divided.links) shared_->closing.push_back(divided.links);
}

void Striped::cancel_hopeless(Divided& divided) {
  for (const Request& part : divided.parts) {
    if (!part.done) continue;
    // If a part is too long, the other parts still arrive, and the sender waits for their receives.
    const bool failed = !part.status.ok() && part.status.code() != Code::invalid_argument;
    if (failed && divided.links && divided.links->failure.ok()) {
      divided.links->failure = part.status;
    }
    if (failed || !is_part(divided, part)) return cancel_parts(divided);
  }
}

void Striped::complete(const Divided& divided) const {
  Request& whole = *divided.whole;
  const Request* cause = nullptr;  // the first failure, before parts that it cancelled
  for (size_t part = 0; part < divided.parts.size(); ++part) {
    if (is_expected(divided, part)) continue;
    const bool consequence = cause && cause->status.code() == Code::aborted;
    if (cause == nullptr || consequence) cause = &divided.parts[part];
  }
  const size_t bytes = std::accumulate(divided.sizes.begin(), divided.sizes.end(), size_t{0});
  if (cause == nullptr) {
    whole.bytes = bytes;
    whole.tag = divided.tag & ~kPartTag;
  } else if (!cause->status.ok() && cause->status.code() != Code::invalid_argument) {
    whole.status = cause->status;
  } else if (cause->status.ok() && cause->tag != divided.tag) {
    whole.bytes = cause->bytes;
    whole.tag = cause->tag;
  } else {
    whole.tag = cause->tag & ~kPartTag;
    whole.status = Status(Code::invalid_argument,
                          "receive: expected a message of " + std::to_string(bytes) +
                              " bytes; got one of another size; both ranks must agree on the size");
  }
  whole.done = true;
}

bool Striped::collect() {
  bool moved = false;
  auto& all = shared_->divided;
  for (auto divided = all.begin(); divided != all.end();) {
    cancel_hopeless(*divided);
    if (!divided->done()) {
      ++divided;
      continue;
    }
    complete(*divided);
    divided = all.erase(divided);
    moved = true;
  }
  std::erase_if(shared_->closing, [](const std::weak_ptr<StripeLinks>& closing) {
    const auto links = closing.lock();
    return !links || std::all_of(links->links.begin(), links->links.end(),
                                 [](auto& link) { return link->closed(); });
  });
  return moved;
}

bool Striped::progress() {
  uint32_t& busy = shared_->polls_due;
  if (!shared_->divided.empty() || !shared_->closing.empty()) busy = kPollsAfterTraffic;
  const auto now = Clock::now();
  const bool all = busy > 0 || ++turns_ % kPollEvery == 0 || now - last_full_poll_ > kPollInterval;
  if (all) last_full_poll_ = now;
  if (busy > 0) --busy;
  bool moved = first().progress();
  for (size_t stripe = 1; all && stripe < transports_.size(); ++stripe) {
    if (!transports_[stripe]->progress()) continue;
    moved = true;
    busy = std::max(busy, 1U);  // more may follow
  }
  if (!shared_->divided.empty() || !shared_->closing.empty()) moved |= collect();
  return moved;
}

bool Striped::prepare_to_sleep() {
  bool ready = true;
  for (Transport* transport : transports_) ready &= transport->prepare_to_sleep();
  if (!ready) shared_->polls_due = std::max(shared_->polls_due, 1U);  // poll all stripes next
  return ready;
}

}  // namespace

std::vector<size_t> divide(size_t bytes, const std::vector<int64_t>& bandwidths) {
  __extension__ using Wide = __int128;
  const Wide sum = std::accumulate(bandwidths.begin(), bandwidths.end(), Wide{0});
  const Wide rest = sum - bandwidths[0];
  // Dividing saves bytes / first - bytes / sum seconds.
  const bool pays = rest > 0 && Wide(bytes) * rest * 1'000'000 >=
                                    Wide(kLeastSavedMicroseconds) * bandwidths[0] * sum;
  if (!pays || bytes < bandwidths.size() * kAlignment) return {bytes};
  std::vector<size_t> sizes;
  size_t begin = 0;
  Wide before = 0;
  for (int64_t bandwidth : bandwidths) {
    before += bandwidth;
    size_t end = static_cast<size_t>(Wide(bytes) * before / sum) / kAlignment * kAlignment;
    if (before == sum) end = bytes;
    sizes.push_back(end - begin);
    begin = end;
  }
  return sizes;
}

std::unique_ptr<Transport> make_striped_transport(std::vector<StripeTransport> stripes) {
  return std::make_unique<Striped>(stripes);
}

}  // namespace hetcomm
