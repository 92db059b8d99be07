#include "transport/loopback/loopback.h"

#include <algorithm>
#include <list>
#include <optional>
#include <string>
#include <utility>

#include "base/fork.h"
#include "transport/loopback/address.h"
#include "transport/loopback/link.h"

namespace hetcomm {
namespace loopback {
namespace {

class Loopback : public Transport {
 public:
  Loopback() : number_(of_process<Inboxes>().add(sender_->inbox)) {}
  ~Loopback() override;

  std::string name() const override { return "loopback"; }
  std::string version() const override { return "1"; }
  std::string why_not_direct(const MemorySample& sample, const std::string&) const override {
    if (sample.memory == MemoryKind::host) return "";
    return std::string("loopback carries host memory, not ") + hetcomm::name(sample.memory) +
           " memory";
  }
  std::string address(bool) const override {
    return Address{of_process<Inboxes>().process(), number_}.pack();
  }
  std::unique_ptr<Link> connect(const std::string& address, int peer_rank) override;
  void recv(uint64_t tag, uint64_t mask, void* data, size_t bytes, MemoryKind memory,
            Request& request) override;
  std::optional<uint64_t> arrived(uint64_t tag, uint64_t mask) const override;
  void cancel(Request& request) override;
  bool progress() override;
  int event_fd() const override { return sender_->inbox->event_fd(); }
  bool prepare_to_sleep() override { return sender_->inbox->prepare_to_sleep(); }

 private:
  struct Posted {
    uint64_t tag, mask;
    void* data;
    size_t bytes;
    Request* request;

    bool matches(const Message& message) const { return ((message.tag() ^ tag) & mask) == 0; }
    bool take(Message& message) const;  // false if the message was cancelled
  };
  void match_new();

  const std::shared_ptr<Sender> sender_ = std::make_shared<Sender>();
  const uint64_t number_;
  std::list<Posted> posted_;
  std::list<std::shared_ptr<Message>> unexpected_;
};

Loopback::~Loopback() {
  of_process<Inboxes>().remove(number_);
  for (const PendingSend& send : sender_->pending) send.message->cancel();
  sender_->pending.clear();
  sender_->transport_gone = true;
  sender_->inbox->close();
  for (const auto& message : unexpected_) message->lose();
}

std::unique_ptr<Link> Loopback::connect(const std::string& address, int peer_rank) {
  const auto to = Address::unpack(address);
  auto& inboxes = of_process<Inboxes>();
  auto inbox = to && to->process == inboxes.process() ? inboxes.find(to->number) : nullptr;
  if (inbox) return make_link(sender_, std::move(inbox), peer_rank);
  throw Error(Status(Code::transport,
                     "link address: expected one from a loopback transport of this process; got " +
                         std::to_string(address.size()) +
                         " bytes that are not; use another transport between processes",
                     -1, peer_rank));
}

bool Loopback::Posted::take(Message& message) const {
  if (!message.receive(data, bytes)) return false;
  request->tag = message.tag();
  if (message.bytes() <= bytes) {
    request->bytes = message.bytes();
  } else {
    request->status = Status(Code::invalid_argument,
                             "receive: expected a message of at most " + std::to_string(bytes) +
                                 " bytes; got a longer one of " + std::to_string(message.bytes()) +
                                 " bytes; both ranks must agree on the size");
  }
  request->done = true;
  return true;
}

void Loopback::recv(uint64_t tag, uint64_t mask, void* data, size_t bytes, MemoryKind,
                    Request& request) {
  match_new();
  request = Request();
  request.done = false;
  const Posted posted{tag, mask, data, bytes, &request};
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
  for (const auto& message : unexpected_) {
    if (((message->tag() ^ tag) & mask) != 0) continue;
    if (message->state() == Message::State::pending) return message->tag();
  }
  return std::nullopt;
}

void Loopback::cancel(Request& request) {
  const auto found = std::find_if(posted_.begin(), posted_.end(),
                                  [&](const Posted& posted) { return posted.request == &request; });
  if (found == posted_.end()) return;
  posted_.erase(found);
  request.status = Status(Code::aborted, "receive: cancelled here");
  request.done = true;
}

void Loopback::match_new() {
  for (auto& message : sender_->inbox->take()) {
    const auto posted = std::find_if(posted_.begin(), posted_.end(),
                                     [&](const Posted& each) { return each.matches(*message); });
    if (posted == posted_.end()) {
      unexpected_.push_back(std::move(message));
    } else if (posted->take(*message)) {
      posted_.erase(posted);
    }
  }
}

bool Loopback::progress() {
  if (!sender_->inbox->take_news()) return false;
  match_new();
  sender_->reap();
  return true;
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
