#pragma once

#include <cstddef>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "transport/striped/striped.h"

namespace hetcomm {

// The links over all stripes to one peer, and the messages that the peer has not confirmed.
// UCX completes a send once the data is in a socket, and a lost stripe loses what is there. So this
// end keeps each message until the peer has confirmed it: in the sender's memory, or in a copy.
// After a loss both ends agree on what is missing. README.md has the protocol. Shared by a link,
// its transport and receives from the peer. Not thread-safe.
class StripeLinks {
 public:
  // `links`: the fastest first.
  StripeLinks(std::vector<std::unique_ptr<Link>> links, std::vector<int64_t> bandwidths);

  const std::vector<std::unique_ptr<Link>>& all() const { return links_; }
  bool lost(size_t stripe) const { return lost_[stripe]; }
  // Its link has closed, and brings nothing any more.
  bool silent(size_t stripe) const { return turns_[stripe] >= kTurns; }
  bool any_lost() const { return left() < lost_.size(); }
  Layout lost_stripes() const { return stripes(/*lost=*/true); }
  size_t first() const { return first_; }  // of the stripes left
  bool unreachable() const { return links_[first_]->failed(); }

  // The links are open.
  void open();

  // Sending.
  void send(uint64_t tag, const void* data, size_t bytes, MemoryKind memory, Request& request);
  // The link does without these stripes, but for the last one. True if any was not lost yet.
  bool lose(const Layout& stripes);
  bool lose_failed();  // whose connections have failed
  // With `flush`, the links stay open until the peer has confirmed all divided messages, or leaves
  // too.
  void close(bool flush);
  bool closed() const;
  // Completes sends; true if there are any.
  bool progress(Clock::time_point now);
  // There are sends to complete, an agreement is pending, or links close.
  bool busy() const;

  // Receiving.
  const Layout& incoming() const { return incoming_; }  // of the peer's next messages
  void consume(size_t bytes);
  // This rank has received a message with this tag.
  void confirm(uint64_t tag, size_t bytes);
  // Asks for the part of a lost stripe: of the message in this place among those with this tag that
  // this rank has not confirmed. The part comes over the stripe `carrier`, with the tag `answer`.
  void ask(uint64_t tag, size_t place, size_t stripe, size_t carrier, uint64_t answer);
  void hear(const Note& note);  // of the peer

  // A message that the peer has sent, and this rank has not received.
  struct Announced {
    uint64_t tag;
    Layout layout;

    bool matches(uint64_t awaited, uint64_t mask) const { return ((tag ^ awaited) & mask) == 0; }
  };
  // The peer has announced its messages after a loss, and nothing more arrives over lost stripes.
  bool agreement_due() const;
  // Confirms once more what the peer may not know, and returns the rest in the peer's order. The
  // peer sends nothing new until end_agreement().
  std::vector<Announced> begin_agreement();
  void end_agreement();
  // No stripe was lost since the last agreement. Otherwise the peer may not know yet which messages
  // this end has received.
  bool agreed() const { return agreed_; }
  // The rest of the last agreement that has no receive so far.
  std::vector<Announced>& owed() { return owed_; }

 private:
  enum Kind : uint64_t {  // of notes
    confirmed,
    wanted,
    losing,
    announced,
    announced_all,
    agreement,
    hurry,
    leaving
  };
  // A message of so many bytes is copied at once: its confirmation takes longer than the copy.
  // Ping-pong of 64 KiB over 1 and 2 Gbit/s, two busy cores: 0.18 ms without confirmations, 0.69 ms
  // when the sender awaits each.
  static constexpr size_t kShort = 256 << 10;
  // A message that the peer has not confirmed, or that UCX still reads.
  struct Sent {
    struct Part {
      size_t stripe, bytes;
      Request request;
    };
    uint64_t number = 0;
    Request* whole = nullptr;  // null once complete for the sender
    uint64_t tag = 0;
    const std::byte* data = nullptr;
    size_t bytes = 0;
    MemoryKind memory = MemoryKind::host;
    std::vector<Part> parts;  // empty while held
    std::list<Part> again;    // of lost stripes
    bool confirmed = false;
    bool kept = false;           // see kept_
    Clock::time_point posted{};  // when UCX needed the data no more
    std::unique_ptr<std::byte[]> copy;

    bool divided() const { return parts.size() > 1; }
    bool read() const;  // UCX needs the data no more
    Layout layout() const;
  };
  using Messages = std::list<Sent>;

  // agreement.cc
  void tell(const Note& note) { links_[first_]->tell(note); }
  void tell_confirmations();
  void announce();
  void send_again(Messages::iterator message, const std::byte* data, size_t bytes, uint64_t tag,
                  size_t carrier);
  void resume();
  void on_confirmations(const Note& note);
  void on_announced(const Note& note);
  void on_wanted(const Note& note);
  void refuse(const Note& note);
  // stripe_links.cc
  size_t left() const;
  Layout stripes(bool lost) const;
  Layout stripes_left() const { return stripes(/*lost=*/false); }
  void post(Messages::iterator message);
  void keep(Messages::iterator message);
  bool may_be_asked() const;
  void look_at_parts(const Sent& message);
  bool advance(Sent& message, Clock::time_point now);
  bool copy(Sent& message);  // false without room for the copy
  void drop_copy(Sent& message);
  void fail(const Status& status);

  std::vector<std::unique_ptr<Link>> links_;
  std::vector<int64_t> bandwidths_;
  std::vector<bool> lost_;
  // Calls of progress() since a lost stripe's link is closed. UCX destroys its sockets one call
  // later.
  static constexpr int kTurns = 4;
  std::vector<int> turns_;
  size_t first_ = 0;

  Layout outgoing_;  // of this rank's next messages
  // In the order of sending, at fixed addresses: those with something to do, and complete ones
  // whose copies wait for the confirmation alone.
  Messages sent_, kept_;
  uint64_t numbers_ = 0;
  std::map<std::pair<uint64_t, uint64_t>, Messages::iterator> unconfirmed_;  // by tag and number
  std::vector<Messages::iterator> held_;                                     // until the agreement
  uint64_t confirmed_ = 0;                                                   // by the peer
  uint64_t epoch_ = 0;                               // of this end's last announcement
  bool holding_ = false;                             // until the peer agrees to it
  bool hurried_ = false;                             // the peer confirms each message at once
  size_t copied_ = 0;                                // bytes of all copies
  std::vector<std::unique_ptr<std::byte[]>> spare_;  // for short divided messages
  Clock::time_point heard_{};  // the last confirmation in either direction, or other note

  Layout incoming_;
  std::deque<uint64_t> received_;  // tags of the last messages, in the order of confirmation
  uint64_t received_before_ = 0;   // number of messages before these
  uint64_t told_ = 0;              // number of messages that this end has confirmed
  size_t untold_bytes_ = 0;
  bool confirms_at_once_ = false;
  uint64_t peer_epoch_ = 0;
  bool agreed_ = true;
  std::vector<Announced> announced_;  // by the peer so far
  std::optional<Note> due_;           // the end of the peer's announcement
  std::vector<Announced> owed_;

  bool opened_ = false;
  bool flushing_ = false;  // closes once the peer can ask for no part
  bool peer_leaves_ = false;
  bool leaves_ = false;
  bool closing_ = false;
  Status failure_;  // of the last stripe; later messages fail with it
};

}  // namespace hetcomm
