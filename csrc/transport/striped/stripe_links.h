#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <vector>

#include "base/deadline.h"
#include "transport/transport.h"

namespace hetcomm {

// The links over all stripes to one peer, and the divided messages that the peer has not confirmed.
// UCX completes a send once the data is in a socket, and a lost stripe loses what is there. So a
// divided message is complete once the peer has received all of it. Until then the memory of the
// message stays as it is, and the peer can ask for the part of a lost stripe again. README.md has
// the protocol. Shared by a link, its transport and receives from the peer. Not thread-safe.
class StripeLinks {
 public:
  // `links`: the fastest first.
  StripeLinks(std::vector<std::unique_ptr<Link>> links, std::vector<int64_t> bandwidths)
      : links_(std::move(links)),
        lost_(links_.size()),
        turns_(links_.size()),
        bandwidths_(std::move(bandwidths)) {}

  const std::vector<std::unique_ptr<Link>>& all() const { return links_; }
  bool lost(size_t stripe) const { return lost_[stripe]; }
  bool any_lost() const;
  // Nothing more arrives over a lost stripe.
  bool silent(size_t stripe) const { return turns_[stripe] >= kTurns; }

  // A message of such parts; one part is a whole message.
  void send(uint64_t tag, const void* data, const std::vector<size_t>& sizes, MemoryKind memory,
            Request& request);
  void consume(size_t bytes);
  void lose(size_t stripe);
  // Loses the stripes whose connections have failed.
  void lose_failed();
  // With `flush`, the links stay open until the peer has confirmed all messages, or leaves too.
  void close(bool flush);
  bool closed() const;

  // This rank has received all parts of the peer's first message with this tag.
  void confirm(uint64_t tag);
  // Asks for the part of a lost stripe: of the message in this place among those with this tag that
  // this rank has not confirmed. The part comes over the first stripe, with the tag `answer`.
  void ask(uint64_t tag, size_t place, size_t stripe, uint64_t answer);
  void hear(const Note& note);  // of the peer

  // Completes sends; true if there are any.
  bool progress(Clock::time_point now);
  // There are sends to complete, or links that close.
  bool busy() const;

 private:
  // A divided message that the peer has not confirmed, or that UCX still reads.
  struct Sent {
    Request* whole = nullptr;  // null once complete, because `copy` has the data
    uint64_t tag = 0;
    const std::byte* data = nullptr;
    MemoryKind memory = MemoryKind::host;
    std::vector<size_t> sizes;   // of the parts
    std::vector<Request> parts;  // done for a lost stripe
    std::list<Request> again;    // parts of lost stripes, over the first stripe
    bool confirmed = false;
    Clock::time_point posted{};  // when UCX needed the data no more
    std::unique_ptr<std::byte[]> copy;

    size_t bytes() const;
    bool read() const;  // UCX needs the data no more
  };

  Sent* unconfirmed(uint64_t tag, size_t place);
  bool may_be_asked() const;
  void send_again(Sent& message, size_t stripe, uint64_t tag);
  void look_at_parts(const Sent& message);
  bool advance(Sent& message, Clock::time_point now);
  bool copy(Sent& message);  // false without room for the copy
  void drop_copy(Sent& message);
  void fail(const Status& status);

  std::vector<std::unique_ptr<Link>> links_;
  std::vector<bool> lost_;
  // Calls of progress() since a lost stripe's link is closed. UCX destroys its sockets one call
  // later.
  static constexpr int kTurns = 4;
  std::vector<int> turns_;
  std::vector<int64_t> bandwidths_;
  std::list<Sent> sent_;                             // in the order of sending, at fixed addresses
  size_t copied_ = 0;                                // bytes of all copies
  std::vector<std::unique_ptr<std::byte[]>> spare_;  // for short messages
  Clock::time_point heard_{};  // the last confirmation in either direction, or other note
  bool flushing_ = false;      // closes once the peer can ask for no part
  bool peer_leaves_ = false;
  bool closing_ = false;
  Status failure_;  // of the first stripe; later messages fail with it
};

}  // namespace hetcomm
