#include "transport/loopback/link.h"

#include <algorithm>
#include <string>
#include <utility>

namespace hetcomm::loopback {
namespace {

Status lost(int peer) {
  return Status(Code::peer_failed, "send: the peer's transport is gone", -1, peer);
}

class LoopbackLink : public Link {
 public:
  LoopbackLink(std::shared_ptr<Sender> sender, std::shared_ptr<Inbox> to, int peer)
      : sender_(std::move(sender)), to_(std::move(to)), peer_(peer) {}
  ~LoopbackLink() override { close(false); }

  void open() override {
    if (closing_) throw Error(aborted("open of a closed link"));
    opened_ = true;
  }
  void send(uint64_t tag, const void* data, size_t bytes, MemoryKind, Request& request) override {
    request = Request();
    if (closing_ || sender_->transport_gone) {
      request.status = aborted("send: the link was closed here");
      return;
    }
    auto message = std::make_shared<Message>(tag, data, bytes, sender_->inbox);
    if (!to_->put(message)) {
      request.status = lost(peer_);
    } else if (!message->copied()) {
      request.done = false;
      sender_->pending.push_back({std::move(message), &request, peer_, this});
    }
  }
  void close(bool flush) override {
    closing_ = true;
    if (!flush && !sender_->transport_gone) {
      sender_->cancel(this, aborted("send: the link was closed here"));
    }
  }
  bool closed() const override {
    return closing_ && std::none_of(sender_->pending.begin(), sender_->pending.end(),
                                    [&](const PendingSend& send) { return send.link == this; });
  }
  std::string describe() const override { return opened_ ? "loopback" : ""; }

 private:
  Status aborted(const char* what) const { return Status(Code::aborted, what, -1, peer_); }

  const std::shared_ptr<Sender> sender_;
  const std::shared_ptr<Inbox> to_;
  const int peer_;
  bool opened_ = false, closing_ = false;
};

}  // namespace

bool Sender::reap() {
  return std::erase_if(pending, [](const PendingSend& send) {
           const Message::State state = send.message->state();
           if (state == Message::State::pending) return false;
           if (state == Message::State::lost) send.request->status = lost(send.peer);
           send.request->done = true;
           return true;
         }) > 0;
}

void Sender::cancel(const Link* link, const Status& status) {
  reap();
  std::erase_if(pending, [&](const PendingSend& send) {
    if (send.link != link) return false;
    send.message->cancel();
    // The receiver may have been faster.
    if (send.message->state() == Message::State::cancelled) send.request->status = status;
    send.request->done = true;
    return true;
  });
}

std::unique_ptr<Link> make_link(std::shared_ptr<Sender> sender, std::shared_ptr<Inbox> to,
                                int peer) {
  return std::make_unique<LoopbackLink>(std::move(sender), std::move(to), peer);
}

}  // namespace hetcomm::loopback
