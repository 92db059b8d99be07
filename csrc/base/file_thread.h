#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace hetcomm {

// Runs tasks that use a file system, in order, on a thread of its own. A file system may stand
// still for ever. So no thread waits for this one without a bound, and process exit not at all. The
// thread shares all that it uses, and outlives this object. Thread-safe.
class FileThread {
 public:
  FileThread();

  // Drops the task, and returns false, if `most` tasks are not over yet, or no thread can start.
  bool post(std::function<void()> task, size_t most);
  // Whether all tasks are over; waits for at most `bound`.
  bool wait(std::chrono::nanoseconds bound) const;

 private:
  struct State;
  static void serve(State& state);

  const std::shared_ptr<State> state_;
};

}  // namespace hetcomm
