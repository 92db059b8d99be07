#include "transport/striped/striped.h"

#include <algorithm>
#include <atomic>
#include <list>
#include <numeric>
#include <utility>

#include "base/deadline.h"
#include "base/events.h"
#include "base/packing.h"
#include "transport/striped/stripe_links.h"

namespace hetcomm {
namespace {

// Idle stripes beyond the first are polled every so many turns, or after this time, because peers
// may connect or leave. After a divided message all stripes are polled so many times in a row,
// because the end of the message may still be in flight.
constexpr uint32_t kPollEvery = 64, kPollsAfterTraffic = 1024;
constexpr auto kPollInterval = std::chrono::milliseconds(100);

// A message that is received, in parts if its sender has divided it.
struct Received {
  Request* whole = nullptr;
  uint64_t tag = 0;  // of the parts
  std::byte* data = nullptr;
  MemoryKind memory = MemoryKind::host;
  std::vector<size_t> sizes;  // of the parts
  std::vector<Request> parts;
  std::vector<bool> asked;            // parts of lost stripes, which come over the first stripe
  std::shared_ptr<StripeLinks> from;  // null if nobody knows the sender
  bool cancelled = false;
  Status failure;  // why the rest cannot arrive

  // False for the part of a lost stripe that the sender has yet to be asked for.
  bool settled(size_t part) const {
    return parts[part].done && (parts[part].status.ok() || asked[part] || !lost(part));
  }
  bool done() const {
    for (size_t part = 0; part < parts.size(); ++part) {
      if (cancelled ? !parts[part].done : !settled(part)) return false;
    }
    return true;
  }
  bool lost(size_t stripe) const { return from && from->lost(stripe); }
  // The sender has divided the message; known once the first part is there.
  bool divided() const { return (parts[0].tag & kPartTag) != 0; }
  bool follows(const Received& earlier) const { return from == earlier.from && tag == earlier.tag; }
};

// Shared by a transport and its links.
struct Shared {
  std::list<Received> received;                      // in the order of posting, at fixed addresses
  std::vector<std::shared_ptr<StripeLinks>> active;  // links with something to do
  uint32_t polls_due = kPollsAfterTraffic;           // of all stripes

  void activate(const std::shared_ptr<StripeLinks>& links) {
    polls_due = kPollsAfterTraffic;
    if (std::find(active.begin(), active.end(), links) == active.end()) active.push_back(links);
  }
  bool busy() const { return !received.empty() || !active.empty(); }
};

class StripedLink : public Link {
 public:
  StripedLink(std::shared_ptr<Shared> shared, std::vector<std::unique_ptr<Link>> links,
              const std::vector<int64_t>& bandwidths)
      : shared_(std::move(shared)),
        links_(std::make_shared<StripeLinks>(std::move(links), bandwidths)),
        bandwidths_(bandwidths) {
    std::weak_ptr<Shared> all = shared_;
    std::weak_ptr<StripeLinks> mine = links_;
    first().listen([all, mine](const Note& note) {
      const auto transport = all.lock();
      const auto heard = mine.lock();
      if (!transport || !heard) return;
      heard->hear(note);
      transport->activate(heard);
    });
  }
  ~StripedLink() override { close(false); }

  const std::shared_ptr<StripeLinks>& links() const { return links_; }

  void send(uint64_t tag, const void* data, size_t bytes, MemoryKind memory,
            Request& request) override {
    const std::vector<size_t> sizes = divide(bytes, bandwidths_);
    links_->send(tag, data, sizes, memory, request);
    if (sizes.size() > 1) shared_->activate(links_);
  }
  void consume(size_t bytes) override { links_->consume(bytes); }
  std::string offer() const override {
    Packer packer;
    for (auto& link : links_->all()) packer.put(link->offer());
    return packer.take();
  }
  void counter(const std::string& theirs, uint64_t spread) override {
    Unpacker from(theirs);
    for (auto& link : links_->all()) link->counter(from.text(), spread);
  }
  void open() override {
    for (size_t stripe = 0; stripe < links_->all().size(); ++stripe) {
      if (!links_->lost(stripe)) open(stripe);
    }
  }
  void lose(size_t stripe) override {
    links_->lose(stripe);
    shared_->activate(links_);
  }
  std::vector<size_t> lost_stripes() const override {
    std::vector<size_t> stripes;
    for (size_t stripe = 0; stripe < links_->all().size(); ++stripe) {
      if (links_->lost(stripe)) stripes.push_back(stripe);
    }
    return stripes;
  }
  void close(bool flush) override {
    links_->close(flush);
    shared_->activate(links_);
  }
  bool closed() const override { return links_->closed(); }
  std::string describe() const override {
    std::string text;
    for (size_t stripe = 0; stripe < links_->all().size(); ++stripe) {
      if (links_->lost(stripe)) continue;
      text += (text.empty() ? "" : " + ") + links_->all()[stripe]->describe();
    }
    return first().describe().empty() ? "" : text;
  }

 private:
  Link& first() const { return *links_->all().front(); }
  // The link does without a stripe that does not open, unless this is the first.
  void open(size_t stripe) try { links_->all()[stripe]->open(); } catch (const Error&) {
    if (stripe == 0) throw;
    lose(stripe);
  }

  std::shared_ptr<Shared> shared_;
  std::shared_ptr<StripeLinks> links_;
  const std::vector<int64_t> bandwidths_;
};

// Tells the parts of lost stripes apart. Of all transports of this process, because they share
// UCX's.
uint64_t next_answer() {
  static std::atomic<uint64_t> last{0};
  return kTransportTags | (++last & ~kTransportTags);
}

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
            Request& request, Link* from) override;
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
  void cancel_hopeless(Received& message);
  void cancel_parts(Received& message);
  void give_up(Received& message);  // the sender can no longer be asked
  // Asks the sender for the parts of lost stripes.
  void ask(Received& message);
  bool place_among_unconfirmed(const Received& message, size_t& place) const;
  bool comes_next(const Received& message) const;
  void complete(const Received& message) const;
  bool collect(Clock::time_point now);
  // False for a failed part, and for a part of a message of another size or call.
  static bool is_expected(const Received& message, size_t part);

  std::vector<Transport*> transports_;
  std::vector<int64_t> bandwidths_;
  const Descriptor events_ = make_epoll();
  uint32_t turns_ = 0;
  Clock::time_point last_full_poll_;  // of all stripes
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

std::unique_ptr<Link> Striped::connect(const std::string& address, int peer_rank) {
  std::vector<std::unique_ptr<Link>> made;
  try {
    Unpacker from(address);
    for (Transport* transport : transports_) {
      made.push_back(transport->connect(from.text(), peer_rank));
    }
    from.end();
  } catch (const Error& error) {
    for (auto& link : made) link->close(false);
    if (error.status().code() != Code::invalid_argument) throw;
    throw Error(
        Status(Code::transport, "link address: " + std::string(error.what()), -1, peer_rank));
  }
  return std::make_unique<StripedLink>(shared_, std::move(made), bandwidths_);
}

void Striped::recv(uint64_t tag, uint64_t mask, void* data, size_t bytes, MemoryKind memory,
                   Request& request, Link* from) {
  std::vector<size_t> sizes = divide(bytes, bandwidths_);
  if (sizes.size() == 1) return first().recv(tag, mask, data, bytes, memory, request, nullptr);
  request = Request();
  request.done = false;
  shared_->polls_due = kPollsAfterTraffic;
  Received& message = shared_->received.emplace_back();
  message.whole = &request;
  message.tag = tag | kPartTag;
  message.data = static_cast<std::byte*>(data);
  message.memory = memory;
  message.parts.resize(sizes.size());
  message.asked.resize(sizes.size());
  if (from != nullptr) message.from = static_cast<StripedLink*>(from)->links();
  // The first receive has room for the whole message, because a sender with one stripe left does
  // not divide.
  std::byte* into = message.data;
  for (size_t stripe = 0; stripe < sizes.size(); into += sizes[stripe], ++stripe) {
    Request& part = message.parts[stripe];
    if (message.lost(stripe)) {
      part.status = Status(Code::aborted, "receive: the stripe is lost");
    } else {
      transports_[stripe]->recv(message.tag, mask, into, stripe == 0 ? bytes : sizes[stripe],
                                memory, part, nullptr);
    }
  }
  message.sizes = std::move(sizes);
}

void Striped::cancel(Request& request) {
  for (Received& message : shared_->received) {
    if (message.whole == &request) return cancel_parts(message);
  }
  first().cancel(request);
}

bool Striped::is_expected(const Received& message, size_t part) {
  const Request& request = message.parts[part];
  if (!request.status.ok() || request.bytes != message.sizes[part]) return false;
  return message.asked[part] || request.tag == message.tag;
}

void Striped::cancel_parts(Received& message) {
  if (std::exchange(message.cancelled, true)) return;
  for (size_t part = 0; part < message.parts.size(); ++part) {
    if (message.parts[part].done) continue;
    (message.asked[part] ? first() : *transports_[part]).cancel(message.parts[part]);
  }
}

void Striped::cancel_hopeless(Received& message) {
  for (size_t part = 0; part < message.parts.size(); ++part) {
    const Request& request = message.parts[part];
    if (!request.done || (part > 0 && message.lost(part))) continue;
    // If a part is too long, the other parts still arrive, and the sender waits for their receives.
    const bool failed = !request.status.ok() && request.status.code() != Code::invalid_argument;
    if (failed || (request.tag & kPartTag) == 0) return cancel_parts(message);
  }
}

void Striped::give_up(Received& message) {
  message.failure = Status(Code::transport,
                           "receive: the connection to the peer failed before the whole message "
                           "came");
  cancel_parts(message);
}

// False while earlier messages of this tag have not begun to arrive.
bool Striped::place_among_unconfirmed(const Received& message, size_t& place) const {
  place = 0;
  for (const Received& earlier : shared_->received) {
    if (&earlier == &message) return true;
    if (!message.follows(earlier)) continue;
    if (!earlier.parts[0].done) return false;
    if (earlier.divided()) ++place;
  }
  return false;
}

void Striped::ask(Received& message) {
  if (!message.from || message.cancelled) return;
  message.from->lose_failed();
  if (!message.from->any_lost()) return;
  shared_->activate(message.from);
  const bool unreachable = message.from->all().front()->failed();
  std::byte* into = message.data;
  for (size_t stripe = 0; stripe < message.parts.size(); into += message.sizes[stripe], ++stripe) {
    Request& part = message.parts[stripe];
    if (stripe == 0 || !message.lost(stripe) || message.settled(stripe)) continue;
    if (message.asked[stripe]) {
      if (unreachable) return give_up(message);
      continue;
    }
    if (!part.done && !message.from->silent(stripe)) continue;
    transports_[stripe]->abandon(part);
    const Request& begin = message.parts[0];
    size_t place = 0;
    if (part.status.ok()) continue;
    if (unreachable) return give_up(message);
    if (!begin.done) continue;
    if (!is_expected(message, 0)) return cancel_parts(message);
    if (!place_among_unconfirmed(message, place)) continue;
    const uint64_t answer = next_answer();
    message.asked[stripe] = true;
    first().recv(answer, ~uint64_t{0}, into, message.sizes[stripe], message.memory, part, nullptr);
    message.from->ask(message.tag, place, stripe, answer);
  }
}

void Striped::complete(const Received& message) const {
  Request& whole = *message.whole;
  const Request* cause = nullptr;  // the first failure, before parts that it cancelled
  for (size_t part = 0; part < message.parts.size(); ++part) {
    if (is_expected(message, part)) continue;
    const bool consequence = cause && cause->status.code() == Code::aborted;
    if (cause == nullptr || consequence) cause = &message.parts[part];
  }
  const size_t bytes = std::accumulate(message.sizes.begin(), message.sizes.end(), size_t{0});
  if (cause == nullptr) {
    whole.bytes = bytes;
    whole.tag = message.tag & ~kPartTag;
    if (message.from) message.from->confirm(message.tag);
  } else if (!message.failure.ok()) {
    whole.status = message.failure;
  } else if (!cause->status.ok() && cause->status.code() != Code::invalid_argument) {
    whole.status = cause->status;
  } else if (cause->status.ok() && cause->tag != message.tag) {
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

// The sender tells messages of one tag apart by their order, so they complete in this order.
bool Striped::comes_next(const Received& message) const {
  for (const Received& earlier : shared_->received) {
    if (&earlier == &message) return true;
    if (message.from && message.follows(earlier)) return false;
  }
  return true;
}

bool Striped::collect(Clock::time_point now) {
  bool moved = false;
  auto& all = shared_->received;
  for (auto message = all.begin(); message != all.end();) {
    cancel_hopeless(*message);
    ask(*message);
    if (!message->done() || !comes_next(*message)) {
      ++message;
      continue;
    }
    complete(*message);
    message = all.erase(message);
    moved = true;
  }
  auto& active = shared_->active;
  for (size_t i = 0; i < active.size(); ++i) moved |= active[i]->progress(now);
  std::erase_if(active, [](const auto& links) { return !links->busy(); });
  return moved;
}

bool Striped::progress() {
  uint32_t& busy = shared_->polls_due;
  if (shared_->busy()) busy = kPollsAfterTraffic;
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
  if (shared_->busy()) moved |= collect(now);
  return moved;
}

bool Striped::prepare_to_sleep() {
  bool ready = true;
  for (Transport* transport : transports_) ready &= transport->prepare_to_sleep();
  if (!ready) shared_->polls_due = std::max(shared_->polls_due, 1U);  // poll all stripes next
  return ready;
}

}  // namespace

std::unique_ptr<Transport> make_striped_transport(std::vector<StripeTransport> stripes) {
  return std::make_unique<Striped>(stripes);
}

}  // namespace hetcomm
