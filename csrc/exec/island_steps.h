#pragma once

#include "exec/operation.h"
#include "exec/paths.h"
#include "exec/run_memory.h"

namespace hetcomm {

// Carries out the island steps of one run by the engine of its island, one at a time in plan order.
// Owned by a run, to whose members it refers; used under the executor's lock.
class IslandSteps {
 public:
  // `lane`: of the island. `captured`: the run is captured into a graph.
  IslandSteps(const Plan& plan, const RunMemory& memory, Paths& paths, const Operation& operation,
              int lane, bool captured);

  int next() const;                        // the first incomplete step; -1 if there is none
  bool active() const { return active_; }  // next() has started
  // Starts next(). An engine with a stream may wait in its library, without the executor's lock.
  void start();
  // Moves the active step forward; see Island::progress().
  Island::Progress progress(Status& status);
  // Ends the active step; the island is unusable afterwards.
  void abandon();

  // Passes when the active step is over; null until the call is in the engine's stream.
  Event event() const;
  // All steps are in the engine's stream, or over.
  bool enqueued() const;
  // The engine may use the buffers: a step is active, or a step failed and poll_release() has not
  // found the buffers released.
  bool holds_buffers() const { return held_; }
  void poll_release() { held_ = held_ && !island_.released(); }
  Stream stream() const { return island_.stream(); }

 private:
  const Plan& plan_;
  const RunMemory& memory_;
  Paths& paths_;
  Island& island_;
  const int lane_;
  IslandCall call_;
  size_t next_ = 0;
  bool active_ = false;
  bool launching_ = false;  // the engine is being called without the lock
  bool held_ = false;       // see holds_buffers()
};

}  // namespace hetcomm
