#include "transport/loopback/loopback.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <optional>
#include <string_view>

#include "base/fnv.h"
#include "base/packing.h"
#include "transport/loopback/mailbox.h"

namespace hetcomm {
namespace loopback {
namespace {

using Lock = std::lock_guard<std::mutex>;

constexpr size_t kMostCopied = 8 << 10;  // bytes

// Names a loopback transport.
struct Address {
  uint64_t process = 0, number = 0;

  std::string pack() const {
    const std::string named = Packer().put(process).put(number).take();
    return named + Packer().put(fnv1a(named)).take();
  }
  static std::optional<Address> unpack(const std::string& bytes) {
    if (bytes.size() != 3 * sizeof(uint64_t)) return std::nullopt;
    Unpacker from(bytes);
    Address address;
    address.process = from.number();
    address.number = from.number();
    const std::string_view named = std::string_view(bytes).substr(0, 2 * sizeof(uint64_t));
    return fnv1a(named) == from.number() ? std::optional(address) : std::nullopt;
  }
};

Status lost(int peer) {
  return Status(Code::peer_failed, "send: the peer's transport is gone", -1, peer);
}

Status closed_here(const char* what, int peer) { return Status(Code::aborted, what, -1, peer); }

// A long message that no receive has taken yet.
struct PendingSend {
  std::shared_ptr<Message> message;
  Request* request;
  int peer;
  const Link* link;
};

// The sending side of a transport, shared with its links.
struct Sender {
  std::shared_ptr<Mailbox> mailbox = std::make_shared<Mailbox>();
  std::list<PendingSend> pending;
  bool transport_gone = false;

  // Completes the sends of messages that have ended.
  void reap() {
    std::erase_if(pending, [](const PendingSend& send) {
      switch (send.message->state) {
        case Message::State::pending:
          return false;
        case Message::State::received:
          break;
        case Message::State::lost:
          send.request->status = lost(send.peer);
          break;
        case Message::State::cancelled:
          send.request->status = closed_here("send: the link was closed here", send.peer);
      }
      send.request->done = true;
      return true;
    });
  }
};

class LoopbackLink : public Link {
 public:
  LoopbackLink(std::shared_ptr<Sender> sender, std::shared_ptr<Mailbox> to, int peer)
      : sender_(std::move(sender)), to_(std::move(to)), peer_(peer) {}
  ~LoopbackLink() override { close(false); }

  void open() override {
    if (closing_) throw Error(closed_here("open of a closed link", peer_));
    opened_ = true;
  }
  void send(uint64_t tag, const void* data, size_t bytes, MemoryKind, Request& request) override;
  void close(bool flush) override {
    closing_ = true;
    if (flush || sender_->transport_gone) return;
    const Lock lock(process().mutex);
    for (const PendingSend& send : sender_->pending) {
      if (send.link == this) send.message->end(Message::State::cancelled);
    }
    sender_->reap();
  }
  bool closed() const override {
    return closing_ && std::none_of(sender_->pending.begin(), sender_->pending.end(),
                                    [&](const PendingSend& send) { return send.link == this; });
  }
  std::string describe() const override { return opened_ ? "loopback" : ""; }

 private:
  const std::shared_ptr<Sender> sender_;
  const std::shared_ptr<Mailbox> to_;
  const int peer_;
  bool opened_ = false, closing_ = false;
};

void LoopbackLink::send(uint64_t tag, const void* data, size_t bytes, MemoryKind,
                        Request& request) {
  request = Request();
  if (closing_ || sender_->transport_gone) {
    request.status = closed_here("send: the link was closed here", peer_);
    return;
  }
  auto message = std::make_shared<Message>(Message{.tag = tag, .data = data, .bytes = bytes});
  const bool copied = bytes <= kMostCopied;
  if (copied) {
    const auto* from = static_cast<const std::byte*>(data);
    message->copy.assign(from, from + bytes);
    message->data = message->copy.data();
  } else {
    message->sender = sender_->mailbox;
  }
  const Lock lock(process().mutex);
  if (to_->closed) {
    request.status = lost(peer_);
    return;
  }
  to_->messages.push_back(message);
  to_->notify();
  if (copied) return;
  request.done = false;
  sender_->pending.push_back({std::move(message), &request, peer_, this});
}

struct PostedReceive {
  uint64_t tag, mask;
  void* data;
  size_t bytes;
  Request* request;

  bool matches(const Message& message) const { return ((message.tag ^ tag) & mask) == 0; }
  bool take(Message& message) const;  // false if the message was cancelled
};

bool PostedReceive::take(Message& message) const {
  if (message.state != Message::State::pending) return false;
  request->tag = message.tag;
  if (message.bytes <= bytes) {
    if (message.bytes > 0) std::memcpy(data, message.data, message.bytes);
    request->bytes = message.bytes;
  } else {
    request->status = Status(Code::invalid_argument,
                             "receive: expected a message of at most " + std::to_string(bytes) +
                                 " bytes; got a longer one of " + std::to_string(message.bytes) +
                                 " bytes; both ranks must agree on the size");
  }
  request->done = true;
  message.end(Message::State::received);
  return true;
}

class Loopback : public Transport {
 public:
  Loopback() {
    const Lock lock(process().mutex);
    number_ = process().next++;
    process().mailboxes[number_] = sender_->mailbox;
  }
  ~Loopback() override;

  std::string name() const override { return "loopback"; }
  std::string version() const override { return "1"; }
  std::string why_not_direct(const MemorySample& sample, const std::string&) const override {
    if (sample.memory == MemoryKind::host) return "";
    return std::string("loopback carries host memory, not ") + hetcomm::name(sample.memory) +
           " memory";
  }
  std::string address(bool) const override { return Address{process().id, number_}.pack(); }
  std::unique_ptr<Link> connect(const std::string& address, int peer_rank) override;
  void recv(uint64_t tag, uint64_t mask, void* data, size_t bytes, MemoryKind memory,
            Request& request, Link* from) override;
  std::optional<uint64_t> arrived(uint64_t tag, uint64_t mask) const override;
  void cancel(Request& request) override;
  bool progress() override;
  int event_fd() const override { return sender_->mailbox->event; }
  bool prepare_to_sleep() override;

 private:
  void match_new();  // under the mutex

  const std::shared_ptr<Sender> sender_ = std::make_shared<Sender>();
  uint64_t number_;
  std::list<PostedReceive> posted_;
  std::list<std::shared_ptr<Message>> unexpected_;
};

Loopback::~Loopback() {
  const Lock lock(process().mutex);
  process().mailboxes.erase(number_);
  for (const PendingSend& send : sender_->pending) send.message->end(Message::State::cancelled);
  sender_->pending.clear();
  sender_->transport_gone = true;
  sender_->mailbox->closed = true;
  for (const auto& message : std::exchange(sender_->mailbox->messages, {})) {
    message->end(Message::State::lost);
  }
  for (const auto& message : unexpected_) message->end(Message::State::lost);
}

std::unique_ptr<Link> Loopback::connect(const std::string& address, int peer_rank) {
  const auto to = Address::unpack(address);
  const Lock lock(process().mutex);
  const auto found = to && to->process == process().id ? process().mailboxes.find(to->number)
                                                       : process().mailboxes.end();
  if (found != process().mailboxes.end()) {
    return std::make_unique<LoopbackLink>(sender_, found->second, peer_rank);
  }
  throw Error(Status(Code::transport,
                     "link address: expected one from a loopback transport of this process; got " +
                         std::to_string(address.size()) +
                         " bytes that are not; use another transport between processes",
                     -1, peer_rank));
}

void Loopback::recv(uint64_t tag, uint64_t mask, void* data, size_t bytes, MemoryKind,
                    Request& request, Link* /*from*/) {
  const Lock lock(process().mutex);
  match_new();
  request = Request();
  request.done = false;
  const PostedReceive posted{tag, mask, data, bytes, &request};
  for (auto message = unexpected_.begin(); message != unexpected_.end();) {
    if (!posted.matches(**message)) {
      ++message;
      continue;
    }
    const bool taken = posted.take(**message);
    message = unexpected_.erase(message);
    if (taken) return;
  }
  posted_.push_back(posted);
}

std::optional<uint64_t> Loopback::arrived(uint64_t tag, uint64_t mask) const {
  const Lock lock(process().mutex);
  for (const auto& message : unexpected_) {
    if (((message->tag ^ tag) & mask) != 0) continue;
    if (message->state == Message::State::pending) return message->tag;
  }
  return std::nullopt;
}

void Loopback::cancel(Request& request) {
  const auto cancelled = [&](const PostedReceive& posted) { return posted.request == &request; };
  if (std::erase_if(posted_, cancelled) == 0) return;
  request.status = Status(Code::aborted, "receive: cancelled here");
  request.done = true;
}

void Loopback::match_new() {
  for (auto& message : std::exchange(sender_->mailbox->messages, {})) {
    const auto posted =
        std::find_if(posted_.begin(), posted_.end(),
                     [&](const PostedReceive& each) { return each.matches(*message); });
    if (posted == posted_.end()) {
      unexpected_.push_back(std::move(message));
    } else if (posted->take(*message)) {
      posted_.erase(posted);
    }
  }
}

bool Loopback::progress() {
  if (!sender_->mailbox->news.exchange(false, std::memory_order_acquire)) return false;
  const Lock lock(process().mutex);
  match_new();
  sender_->reap();
  return true;
}

bool Loopback::prepare_to_sleep() {
  Mailbox& mailbox = *sender_->mailbox;
  clear_eventfd(mailbox.event);
  const Lock lock(process().mutex);
  mailbox.asleep = !mailbox.news.load(std::memory_order_relaxed);
  return mailbox.asleep;
}

bool viable(const LinkEnd& here, const LinkEnd& there) {
  const auto mine = Address::unpack(here.addresses.at("loopback"));
  const auto theirs = Address::unpack(there.addresses.at("loopback"));
  return mine && theirs && mine->process == theirs->process;
}

std::unique_ptr<Transport> make(const TransportId&, Transports&) {
  return std::make_unique<Loopback>();
}

}  // namespace
}  // namespace loopback

const TransportKind& loopback_transport() {
  static const TransportKind kind = {
      .name = "loopback",
      .memory = {MemoryKind::host},
      .by_default = [] { return false; },
      .viable = loopback::viable,
      .cost = [](const LinkEnd&) { return LinkCost{.latency = 500, .bandwidth = 20'000'000'000}; },
      .id = [](const LinkEnd&) { return TransportId{.kind = "loopback"}; },
      .parts = nullptr,
      .make = loopback::make,
      .remedy = nullptr,
  };
  return kind;
}

}  // namespace hetcomm
