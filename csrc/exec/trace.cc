#include "exec/trace.h"

namespace hetcomm {
namespace {

int64_t since(Clock::time_point then) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - then).count();
}

}  // namespace

void Trace::begin(std::shared_ptr<const Plan> of) {
  plan = std::move(of);
  steps.assign(plan->steps.size(), {-1, -1});
  started = since(submitted);
}

void Trace::begin(int step) { steps[step].start = since(submitted); }

void Trace::end(int step) { steps[step].end = since(submitted); }

void Trace::end() {
  if (ended < 0) ended = since(submitted);
}

}  // namespace hetcomm
