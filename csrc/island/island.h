#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "device/device.h"

namespace hetcomm {

// One call of a collective, as ranks tell each other: 48 bytes. Ranks compare descriptors at every
// collective.
struct CallDescriptor {
  uint64_t sequence = 0;  // number of the collective within the communicator
  uint64_t count = 0;
  uint32_t root = 0;
  uint16_t collective = 0;
  uint8_t dtype = 0;
  uint8_t op = 0;
  double factor = 1;
  uint64_t history = 0;  // hash of all earlier calls, so that a mistake shows at the next call
  uint32_t step = 0;     // the island step within the plan
  uint32_t codec = 0;    // id_of() the codec setting, and feedback

  bool operator==(const CallDescriptor&) const = default;
  bool same_call(CallDescriptor other) const {  // whichever step of the call
    other.step = step;
    return *this == other;
  }
};

// A part of an island call with this member's addresses. Members are indices in the island.
// `source` and `target` may be null where this member neither reads nor writes.
struct IslandPiece {
  int from = -1;
  int to = -1;
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  int64_t count = 0;  // elements
  // Positions of source and target in the plan's buffers, in elements, equal on all members. Pieces
  // with consecutive positions are adjacent in memory on every member. -1: not known.
  int64_t source_place = -1;
  int64_t target_place = -1;
};

// One collective inside an island.
struct IslandCall {
  bool reduces = false;  // sums the sources of all members; else takes the source on `from`
  bool to_all = false;   // writes the targets of all members; else the target on `to`
  Dtype dtype = Dtype::float32;
  ReduceOp op = ReduceOp::sum;  // of this step; an average is over the members
  CallDescriptor descriptor;    // only native libraries read its factor, that of premul_sum
  // The same list on every member, except for addresses. Native libraries need of an all_to_all
  // only those of the member.
  std::vector<IslandPiece> pieces;
  // The stream is being captured into a graph: the call is over as soon as it is in the stream.
  bool captured = false;
};

// Collectives among the ranks of one island. Owned by one communicator. All calls come under the
// executor's lock, with one exception: start() of an engine with a stream() comes without the lock.
// Meanwhile other threads call only const methods, for other lanes. An island has `lanes()`
// independent lanes. Calls of one lane run one at a time, and every member makes the same calls in
// the same order.
class Island {
 public:
  virtual ~Island() = default;
  virtual std::string describe() const = 0;  // "shared memory, 2 ranks, avx512"
  virtual int lanes() const = 0;
  // Calls so far in which members read each other's buffers in place.
  virtual int64_t direct_calls() const { return 0; }

  // Begins a call in an idle lane. `call` stays alive and unmoved until done.
  virtual void start(int lane, const IslandCall& call) = 0;
  // same_processor: the call waits for a member on this very processor, so this thread must yield.
  enum class Progress : uint8_t { waiting, same_processor, advanced, done };
  // Does all work that needs no waiting. A failure sets `status` and returns done. A mismatch
  // between members names both calls.
  virtual Progress progress(int lane, Status& status) = 0;
  // Forgets the call of a lane, without waiting. The island is unusable afterwards.
  virtual void abandon(int lane) = 0;
  // Whether an island that failed or was abandoned no longer uses the memory of its calls.
  virtual bool released() const { return true; }

  // For sleeping. While true, a peer that makes progress possible wakes this rank. A rank first
  // calls set_sleeping(true), then progress() in every busy lane. It sleeps only if all lanes
  // return waiting, so it misses no peer.
  virtual void set_sleeping(bool sleeping) = 0;

  // The stream of an engine for device memory. A call comes after all work that was in the stream
  // before start(). Null for engines on host memory.
  virtual Stream stream() const { return nullptr; }
  // Passes when a lane's call is over; null until the call is in the stream. Calls of all lanes run
  // in the order in which they enter the stream, and all members must agree on that order.
  virtual Event event(int lane) const { return static_cast<void>(lane), nullptr; }

  // Registers device memory for repeated use, which an engine may then use without copies. All
  // members register theirs while no call is under way. Throws Error.
  virtual void register_buffer(void* pointer, size_t bytes) {
    static_cast<void>(pointer), static_cast<void>(bytes);
    throw lacks("registered buffers; use the memory as it is");
  }
  virtual void deregister_buffer(void* pointer) {
    static_cast<void>(pointer);
    throw lacks("registered buffers; there is nothing to take back");
  }

 private:
  Error lacks(const std::string& what) const {
    return Error(Code::invalid_argument, describe() + ": expected an engine with " + what);
  }
};

}  // namespace hetcomm
