#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "island/shm/exchange.h"
#include "island/shm/peer_memory.h"

namespace hetcomm::shm {

// A call among shared allocations: members read each other's buffers in place, without slots. In
// round 0 every member tells where its buffers are, and whether all of them are shared. If the
// buffers of all members are shared, further rounds move the data; else the call continues through
// slots. No member writes into another member's memory. Owned by a lane; one call at a time.
//
// After round 0, a member reads before it publishes a round. So no member reads once all have
// published the last round. An all_reduce goes by chunks. Member j reduces the j-th part of a chunk
// into its own target, publishes, and then copies the other parts from their owners' targets. A
// last round tells that all members have copied.
class Direct final : public Exchange {
 public:
  Direct(const ShmOptions& options, int64_t slot_bytes, PeerMemory& peers);

  // Whether the call is large enough. All members agree, because only kind and counts decide.
  bool suits(const IslandCall& call) const;
  // Whether all buffers of this member are shared allocations, and it can read those of the others.
  bool shared(const IslandCall& call);
  // Whether a suitable call begins with a round in which members offer their buffers. Members begin
  // to offer after a call through slots in which all buffers were shared. They stop after several
  // failed offers in a row.
  bool offers() const { return offers_left_ > 0; }
  void learn(bool shared_by_all);  // from a suitable call through slots

  // Before prepare(): the exchange that takes the call if an offer fails, and the result of
  // shared().
  void begin(Exchange& fallback, bool shared) { fallback_ = &fallback, shared_ = shared; }
  void prepare(const IslandCall& call) override;
  int64_t needs(int64_t round) const override;
  void publish(int64_t round, std::byte* slot) override;
  void read(int64_t round, const std::byte* const* slots) override;
  const Status& failure() const { return failure_; }
  int64_t calls() const { return calls_; }  // without slots

 private:
  // Where a piece begins: offsets in its member's arena, and addresses in this process.
  struct Offsets {
    uint64_t source;
    uint64_t target;
  };
  struct Addresses {
    const std::byte* source;
    const std::byte* target;
  };

  bool reads(const IslandCall& call, const IslandPiece& piece) const;  // as a source
  bool writes(const IslandCall& call, const IslandPiece& piece) const;
  void write_offer(std::byte* slot) const;
  bool all_willing(const std::byte* const* slots) const;
  void resolve(const std::byte* const* slots);
  void divide_into_rounds();
  const std::byte* address_of(int member, uint64_t offset, int64_t bytes);
  Addresses& addresses(int member, const IslandPiece& piece);
  Bounds part(int64_t chunk, int owner) const;
  void copy(std::byte* target, const std::byte* source, int64_t bytes) const;
  void move(int64_t begin, int64_t end);
  void combine(int64_t begin, int64_t end);
  void gather(int64_t chunk);

  const ShmOptions& options_;
  PeerMemory& peers_;
  Exchange* fallback_ = nullptr;
  const IslandCall* call_ = nullptr;
  int64_t element_bytes_ = 1;
  bool shared_ = false;
  bool agreed_ = false;
  int offers_left_ = 0;
  int64_t calls_ = 0;
  Status failure_;
  std::vector<PieceList> incoming_;   // of a move: by sender; of a reduction: all in [0]
  std::vector<Addresses> addresses_;  // member x piece
  std::vector<const void*> sources_;
  int64_t width_ = 0;  // bytes that a member moves or reduces in a round
  int64_t chunks_ = 0;
  bool past_caches_ = false;  // the buffers of all members together exceed kCache
};

}  // namespace hetcomm::shm
