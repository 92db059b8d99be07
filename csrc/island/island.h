#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "device/device.h"

namespace hetcomm {

// What a rank says it is doing, compared between ranks at every collective: 48 bytes.
struct CallDescriptor {
  uint64_t sequence = 0;  // the how-manieth collective of the communicator
  uint64_t count = 0;
  uint32_t root = 0;
  uint16_t collective = 0;
  uint8_t dtype = 0;
  uint8_t op = 0;
  double factor = 1;
  uint64_t history = 0;  // hash of all earlier calls: a disagreement shows at the next one at least
  uint64_t step = 0;     // the island step within the plan

  bool operator==(const CallDescriptor&) const = default;
};

// A part of an island operation with this member's addresses filled in. Members are indices in
// the island. `source` and `target` may be null where this member neither reads nor writes.
struct IslandPiece {
  int from = -1;
  int to = -1;
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  int64_t count = 0;  // elements
  // Where in the plan's buffers the two lie, in elements, equal on all members: pieces whose places
  // follow each other are adjacent in memory on every member. -1: not known.
  int64_t source_place = -1;
  int64_t target_place = -1;
};

// One collective inside an island.
struct IslandCall {
  bool reduces = false;  // sums every member's source, else takes the source on `from`
  bool to_all = false;   // into every member's target, else into the target on `to`
  Dtype dtype = Dtype::float32;
  ReduceOp op = ReduceOp::sum;  // average: over the members
  double factor = 1;            // of premul_sum, which only native libraries have
  CallDescriptor descriptor;
  std::vector<IslandPiece> pieces;  // the same list, but for addresses, on every member
  // The stream is being recorded into a graph: the call is over as soon as it is in the stream.
  bool recorded = false;
};

// Collectives among the ranks of one island. Owned by one communicator; called only under the
// engine's lock, except start() of an engine with a stream(), during which nothing else is called
// but const methods of other lanes. An island has `lanes()` independent lanes; in one lane calls
// run one at a time, and every member makes the same calls in the same order.
class Island {
 public:
  virtual ~Island() = default;
  virtual std::string describe() const = 0;  // "shared memory, 2 ranks, avx512"
  virtual int lanes() const = 0;
  // Calls so far in which members read each other's buffers in place.
  virtual int64_t direct_calls() const { return 0; }

  // Begins a call in an idle lane. `call` stays alive and unmoved until done.
  virtual void start(int lane, const IslandCall& call) = 0;
  // same_processor: waiting for a member that runs on this very processor, and so only once this
  // thread makes way.
  enum class Progress : uint8_t { waiting, same_processor, advanced, done };
  // Does what can be done without waiting. On failure sets `status` (a mismatch between members
  // names both calls) and returns done.
  virtual Progress progress(int lane, Status& status) = 0;
  // Forgets the call of a lane, without waiting; the island is unusable afterwards.
  virtual void abandon(int lane) = 0;
  // Of an island that failed or was abandoned: it has let go of the memory of its calls.
  virtual bool released() const { return true; }

  // For sleeping. While true, a peer that makes progress possible wakes this rank. A rank calls
  // set_sleeping(true), then progress() once more in every busy lane, and sleeps only if all of
  // them returned waiting; a peer that came in between is thus not missed.
  virtual void set_sleeping(bool sleeping) = 0;

  // The stream on which an engine for device memory works, in order: it reads and writes after what
  // was put there before start(). Null for engines on host memory.
  virtual Stream stream() const { return nullptr; }
  // Passes when a lane's call is over; null until the call is in the stream. A call that begins
  // after that, in whatever lane, comes behind it: all members must agree on this order, too.
  virtual Event event(int lane) const { return static_cast<void>(lane), nullptr; }

  // Device memory that calls will use again and again, which an engine may then do without copies.
  // All members register theirs, and none while a call is under way. Throws Error.
  virtual void register_buffer(void* pointer, size_t bytes) {
    static_cast<void>(pointer), static_cast<void>(bytes);
    throw lacks("registered buffers; use the memory as it is");
  }
  virtual void deregister_buffer(void* pointer) {
    static_cast<void>(pointer);
    throw lacks("registered buffers; there is nothing to take back");
  }
  // Device memory as the engine likes it best for registration. Throws Error.
  virtual std::shared_ptr<void> allocate(size_t bytes) {
    static_cast<void>(bytes);
    throw lacks("memory of its own; use that of the framework");
  }

 private:
  Error lacks(const std::string& what) const {
    return Error(Code::invalid_argument, describe() + ": expected an engine with " + what);
  }
};

}  // namespace hetcomm
