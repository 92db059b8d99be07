#pragma once

#include <memory>
#include <vector>

#include "base/deadline.h"
#include "plan/cost.h"

namespace hetcomm {

// The times of one run and its steps, in ns since submission; -1 for events that have not happened.
// The run writes its trace under the executor's lock, and no longer once `ended` is set.
struct Trace {
  std::shared_ptr<const Plan> plan;
  Clock::time_point submitted = Clock::now();
  int64_t started = -1;  // the run got its lane
  int64_t ended = -1;
  std::vector<Interval> steps;  // of the plan; a message starts when it is posted

  // Not inline, to keep the path of untraced runs short.
  void begin(std::shared_ptr<const Plan> of);
  void begin(int step);
  void end(int step);
  void end();
};

}  // namespace hetcomm
