#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "island/shm/exchange.h"
#include "island/shm/peer_memory.h"

namespace hetcomm::shm {

// A call among shared allocations, without slots: members read each other's buffers in place. In
// round 0 every member tells where its buffers are, and whether all are shared; if everybody's are,
// further rounds move the data, else the call goes on through slots. No member writes into
// another's memory. Owned by a lane; one call at a time.
//
// Rounds after the first: what is moved, or reduced for one owner, is taken before a round is
// published, and once all have published the last one, nobody reads any more. An all_reduce goes by
// chunks, of which member j reduces the j-th part into its own target before it publishes, and then
// copies the other parts from their owners' targets; a last round tells that all have.
class Direct final : public Exchange {
 public:
  Direct(const ShmOptions& options, int64_t slot_bytes, PeerMemory& peers);

  // Whether the call is worth it: the same on all members, since only kind and counts decide.
  bool suits(const IslandCall& call) const;
  // Whether all that this member reads and writes in it are shared allocations, and it can read
  // the others'.
  bool shared(const IslandCall& call);
  // Whether a call that suits begins with a round in which members offer their buffers. Members
  // offer after a call through slots in which all buffers were shared, until several offers in a
  // row have failed.
  bool offers() const { return offers_left_ > 0; }
  void learn(bool shared_by_all);  // of a call that suits, through slots

  // Before prepare(): how the call is made otherwise, and what shared() says of it.
  void begin(Exchange& otherwise, bool shared) { otherwise_ = &otherwise, shared_ = shared; }
  void prepare(const IslandCall& call) override;
  int64_t needs(int64_t round) const override;
  void publish(int64_t round, std::byte* slot) override;
  void read(int64_t round, const std::byte* const* slots) override;
  const Status& failure() const { return failure_; }
  int64_t calls() const { return calls_; }  // that took no slots

 private:
  // Where a piece's source and target begin: as a member tells it, and as it is here.
  struct Places {
    uint64_t source;
    uint64_t target;
  };
  struct View {
    const std::byte* source;
    const std::byte* target;
  };

  bool reads(const IslandCall& call, const IslandPiece& piece) const;  // as a source
  bool writes(const IslandCall& call, const IslandPiece& piece) const;
  void tell(std::byte* slot) const;
  bool all_agree(const std::byte* const* slots) const;
  void look_up(const std::byte* const* slots);
  void lay_out();
  const std::byte* here(int member, uint64_t offset, int64_t bytes);
  View& view(int member, const IslandPiece& piece);
  Bounds part(int64_t chunk, int owner) const;
  void copy(std::byte* target, const std::byte* source, int64_t bytes) const;
  void move(int64_t begin, int64_t end);
  void combine(int64_t begin, int64_t end);
  void gather(int64_t chunk);

  const ShmOptions& options_;
  PeerMemory& peers_;
  Exchange* otherwise_ = nullptr;
  const IslandCall* call_ = nullptr;
  int64_t element_bytes_ = 1;
  bool shared_ = false;
  bool agreed_ = false;
  int offers_left_ = 0;
  int64_t calls_ = 0;
  Status failure_;
  std::vector<Stream> incoming_;  // by sender, of what moves; else [0] is what is reduced
  std::vector<View> views_;       // member x piece
  std::vector<const void*> sources_;
  int64_t width_ = 0;  // of what a member moves or reduces in a round
  int64_t chunks_ = 0;
  bool past_caches_ = false;  // the buffers of all members together do not fit the cache
};

}  // namespace hetcomm::shm
