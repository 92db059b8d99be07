#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/descriptor.h"
#include "base/status.h"
#include "island/island.h"

namespace hetcomm::shm {

constexpr uint32_t kDepth = 4;

// How a segment is divided: every member owns, in every lane, a ring of `depth` slots.
struct Shape {
  uint32_t members = 1;
  uint32_t lanes = 1;
  uint32_t depth = kDepth;
  uint64_t slot_bytes = 0;  // of data, a multiple of 64
};

// A bit in SlotHeader::finished: all buffers of the member in the call are shared allocations.
constexpr uint64_t kShared = uint64_t{1} << 63;

// Precedes the data of a slot. `round` is the number of the round in the slot, from 1, and storing
// it publishes the slot. One cache line, so that a peer gets the header in one transfer.
struct alignas(64) SlotHeader {
  std::atomic<uint64_t> round;
  // Rounds that the slot's owner had finished reading when it published; and kShared.
  uint64_t finished;
  CallDescriptor descriptor;
};

// The state of a member, for the other members. Two cache lines, as processors prefetch pairs.
struct alignas(128) MemberState {
  std::atomic<uint64_t> attached;   // stage of set-up: 1 introduced, 2 has probed the others
  std::atomic<uint64_t> awaited;    // not 0: asleep until a member of this mask acts
  std::atomic<uint32_t> processor;  // last seen, from 1
  // For PeerMemory: the process and its arena; the first member, from 1, whose arena this member
  // cannot open, and the errno.
  int32_t process;
  int32_t arena_descriptor;
  uint64_t arena_device;
  uint64_t arena_inode;
  uint64_t arena_bytes;
  int32_t arena_missed;
  int32_t arena_error;
};
struct alignas(128) LaneState {
  std::atomic<uint64_t> finished;  // rounds that the member has finished reading in this lane
  std::atomic<uint64_t> reserved;  // not 0: the headers of its slots may be read
};

static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(SlotHeader) == 64 && sizeof(MemberState) == 128 && sizeof(LaneState) == 128);

// The shared memory of an island: a file without a name, mapped for the life of the object.
// Addresses come from a private copy of the shape, so no peer can lead them out of the mapping.
// Slots take memory when their owners reserve it. Owned by an island.
class Segment {
 public:
  static Descriptor create(const Shape& shape);  // see create_shm_segment

  explicit Segment(int file);  // throws Error(transport)
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const Shape& shape() const { return shape_; }
  MemberState& member(int member) const;
  LaneState& lane(int lane, int member) const;
  SlotHeader& header(int lane, int member, uint64_t round) const;
  std::byte* data(int lane, int member, uint64_t round) const;

  // Reserves memory for a member's own slots in a lane, `bytes` of data each. No member may touch
  // the slots before.
  Status reserve(int lane, int member, int64_t bytes) const;

  // The first member that gave up, and the member for which it waited in vain; -1 without one.
  struct Poison {
    int by = -1, awaited = -1;
  };
  Poison poisoned() const;
  void poison(int member, int awaited = -1);

 private:
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
  Shape shape_;
};

}  // namespace hetcomm::shm
