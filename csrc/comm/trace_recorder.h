#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "exec/run.h"

namespace hetcomm {

// Collects the traces of a communicator's operations between begin() and end(). Thread-safe.
class TraceRecorder {
 public:
  // False if recording is on.
  bool begin() { return !recording_.exchange(true); }
  // Comes before submission of the run.
  void add(Run& run) {
    if (!recording_.load(std::memory_order_relaxed)) [[likely]]
      return;
    std::lock_guard lock(mutex_);
    traces_.push_back(run.begin_trace());
  }
  // The traces of operations that are over, in the order of their calls. Under the executor's lock.
  std::vector<std::shared_ptr<const Trace>> end() {
    recording_ = false;
    std::lock_guard lock(mutex_);
    auto traces = std::exchange(traces_, {});
    std::erase_if(traces, [](const auto& trace) { return trace->ended < 0; });
    return traces;
  }

 private:
  std::atomic<bool> recording_{false};
  std::mutex mutex_;
  std::vector<std::shared_ptr<const Trace>> traces_;
};

}  // namespace hetcomm
