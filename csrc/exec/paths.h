#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "exec/streams.h"
#include "island/island.h"
#include "plan/plan.h"
#include "transport/link_offers.h"
#include "transport/transports.h"

namespace hetcomm {

// The way to one member of a communicator, as that member published it.
struct PeerAddress {
  Route route;
  uint32_t first_sender = 0;  // of the peer's SenderNumbers for this communicator
};

// The ways from one rank to the other ranks of its communicator: the engine of its island, and a
// link for each peer, opened at first use. Owned by a communicator; used under the executor's lock.
class Paths {
 public:
  // `island` is null in an island of one rank, `device` for buffers in host memory. Without a
  // transport link() fails with `no_transport`. Throws Error(transport) on an unusable address.
  Paths(int rank, std::vector<PeerAddress> peers, std::unique_ptr<Island> island,
        std::shared_ptr<Device> device, Status no_transport);

  int rank() const { return rank_; }
  Island* island() { return island_.get(); }
  // Calls of a native library go through `launch`, which may release the executor's lock meanwhile.
  using Launch = std::function<void(const std::function<void()>& call)>;
  void launch_by(Launch launch) { launch_ = std::move(launch); }
  const Launch& launch() const { return launch_; }
  // Messages from the peer arrive on this transport.
  Transport* transport(int peer) { return peers_[peer].route.transport; }
  Streams* streams() { return streams_.get(); }  // null without a device

  // The sender of an unexpected message whose tag has this body, apart from the hash; -1 if there
  // is none.
  int sender(uint64_t body) const;
  bool arrived(int from, uint64_t body) const;  // whether `from` sent such a message
  LinkOffers offers() const;
  void counter(int peer, const std::string& theirs, uint64_t spread) {  // see Link::counter()
    links_[peer]->counter(theirs, spread);
  }
  // Whether any link was opened.
  bool opened() const { return opened_; }
  // The link to a peer, opened, or null with `status` set.
  Link* link(int peer, Status& status);
  // This rank received a message of so many bytes; see Link::consume().
  void consume(int peer, size_t bytes) {
    if (links_[peer]) links_[peer]->consume(bytes);
  }
  // A stripe no longer reaches the peer; see Link::lose().
  void lose(int peer, size_t stripe) {
    if (links_[peer]) links_[peer]->lose(stripe);
  }
  bool lost(int peer, size_t stripe) const;
  // "tcp over eth0", or "not connected yet".
  std::string describe(int peer) const;
  // Closes every link; see Link::close().
  void close(bool flush);
  bool closed() const;
  void drop_links() { links_.clear(); }  // no other call comes afterwards

  // Bits of a tag, from the highest:
  //   63-52 and 50-38 sender, of the receiver's SenderNumbers   51 kPartTag   37 kind
  //   of a collective (kind 0): 36-25 sequence, 24-13 message number, 12-0 call hash
  //   of a user's message (kind 1): 36-5 user tag, 4-0 dtype
  // A receive does not match on kPartTag, call hash or dtype. MessageSteps compares these once the
  // message is there. So ranks that disagree about a call get an error instead of an endless wait.
  static constexpr int kMaxRanks = 1 << 17;
  static constexpr uint32_t kSenderNumbers = ((1 << 12) - 1) << 13;  // see kTransportTags
  static constexpr uint64_t kCollectiveHash = 0x1fff, kMessageDtype = 0x1f;
  static constexpr uint64_t compared(bool message) {
    return kPartTag | (message ? kMessageDtype : kCollectiveHash);
  }
  static_assert(kDtypes <= kMessageDtype + 1, "five bits hold every dtype");
  uint64_t send_tag(int to, uint64_t body) const {
    return tag(peers_[to].first_sender + rank_, body);
  }
  uint64_t recv_tag(int from, uint64_t body) const {
    return tag(peers_[rank_].first_sender + from, body);
  }
  static_assert(kMessageNumbers <= 1 << 12, "twelve bits hold every message number");
  static uint64_t collective_body(uint64_t sequence, int message, uint64_t hash) {
    return (sequence & 0xfff) << 25 | static_cast<uint64_t>(message % kMessageNumbers) << 13 |
           (hash & kCollectiveHash);
  }
  static uint64_t message_body(uint32_t user_tag, uint64_t dtype) {
    return uint64_t{1} << 37 | static_cast<uint64_t>(user_tag) << 5 | (dtype & kMessageDtype);
  }

  static uint32_t sender_of(uint64_t tag) {
    return static_cast<uint32_t>(tag >> 52 << 13 | (tag >> 38 & 0x1fff));
  }

 private:
  static uint64_t tag(uint32_t sender, uint64_t body) {
    return uint64_t{sender >> 13} << 52 | uint64_t{sender & 0x1fff} << 38 | body;
  }

  int rank_;
  std::vector<PeerAddress> peers_;
  std::unique_ptr<Streams> streams_;
  std::unique_ptr<Island> island_;
  Launch launch_;
  Status no_transport_;
  std::vector<std::unique_ptr<Link>> links_;
  bool opened_ = false;
};

}  // namespace hetcomm
