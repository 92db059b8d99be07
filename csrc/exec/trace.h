#pragma once

#include <memory>
#include <vector>

#include "base/deadline.h"
#include "plan/cost.h"

namespace hetcomm {

// What one run did and when, in ns since it was submitted; -1 where it never came to it. Written by
// its run under the executor's lock; nobody writes it any more once `ended` is there.
struct Trace {
  std::shared_ptr<const Plan> plan;
  Clock::time_point submitted = Clock::now();
  int64_t started = -1;  // it had its lane
  int64_t ended = -1;
  std::vector<Interval> steps;  // of the plan; a message starts when the transport has it

  // Apart from where they are called, which is the way of every operation.
  void begin(std::shared_ptr<const Plan> of);
  void begin(int step);
  void end(int step);
  void end();
};

}  // namespace hetcomm
