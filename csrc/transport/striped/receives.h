#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "transport/striped/stripe_links.h"

namespace hetcomm {

// The receives of a striped transport, in the order of posting. Every part of a message is a
// receive of its own, on the transport of its stripe. After a loss, agree() posts anew what the
// lost stripes would have brought. Not thread-safe.
class StripeReceives {
 public:
  // The transports of the stripes, the fastest first, and bytes per second.
  StripeReceives(std::vector<Transport*> transports, std::vector<int64_t> bandwidths);

  // See Transport::recv(). `from` is null if nobody knows the sender; such a message does not
  // survive the loss of a stripe.
  void post(uint64_t tag, uint64_t mask, void* data, size_t bytes, MemoryKind memory,
            Request& request, std::shared_ptr<StripeLinks> from);
  void cancel(Request& request);
  // Completes receives; true if there are any.
  bool collect();
  // Replies to the peer's announcement of its messages.
  void agree(const std::shared_ptr<StripeLinks>& from);
  bool empty() const { return received_.empty(); }
  bool divided() const { return divided_ > 0; }  // any of them

 private:
  struct Part {
    size_t stripe = 0;   // whose part it is
    size_t carrier = 0;  // the stripe that brings the part; another one after a loss
    size_t bytes = 0;
    bool asked = false;
    bool waits = false;  // for an agreement, before the receive is posted
    Request request = {};
  };
  struct Received {
    Request* whole = nullptr;
    uint64_t tag = 0, mask = 0;
    std::byte* data = nullptr;
    size_t bytes = 0;
    MemoryKind memory = MemoryKind::host;
    std::shared_ptr<StripeLinks> from;
    std::vector<Part> parts;
    bool cancelled = false;
    Status failure;  // why the rest cannot arrive

    bool divided() const { return parts.size() > 1; }
    uint64_t sent_tag() const { return divided() ? tag | kPartTag : tag; }
    std::byte* memory_of(size_t part) const;
    bool lost(const Part& part) const { return from && from->lost(part.carrier); }
    // False for a part that waits, or that is yet to come in place of a lost one.
    bool settled(const Part& part) const {
      return part.request.done && !part.waits && (part.request.status.ok() || !lost(part));
    }
    bool done() const;
    bool follows(const Received& earlier) const {
      return from == earlier.from && sent_tag() == earlier.sent_tag();
    }
  };

  void post(Received& message, const Layout& over);
  void post_part(Received& message, size_t part);
  void withdraw(Received& message);
  // Throws Error if the part may still be written.
  void abandon(const Received& message, Part& part);
  // Posts what is not posted, and asks for the parts of lost stripes. The peer has sent the
  // message.
  void ask(Received& message);
  void ask(Received& message, size_t part);
  size_t place_among_unconfirmed(const Received& message) const;
  // Cancels the message once one of its parts has failed.
  void cancel_hopeless(Received& message);
  void cancel_parts(Received& message);
  void give_up_unreachable(Received& message);
  bool comes_next(const Received& message) const;
  void complete_at_once(const Received& message);
  void complete(const Received& message) const;
  void complete_divided(const Received& message) const;
  // False for a failed part, and for a part of a message of another size or call.
  static bool is_expected(const Received& message, const Part& part);

  std::vector<Transport*> transports_;
  std::vector<int64_t> bandwidths_;
  Layout all_;
  std::list<Received> received_;  // at fixed addresses
  size_t divided_ = 0;
};

}  // namespace hetcomm
