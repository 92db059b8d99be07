// Calls into native libraries, which may last, and the wait until a captured run is in its stream.

#include <sched.h>

#include "exec/executor.h"

namespace hetcomm {
namespace {

constexpr auto kBeginBound = std::chrono::seconds(10);

}  // namespace

thread_local const Run* Executor::captured_here = nullptr;

void Executor::await_captured(RunQueue& queue, const std::shared_ptr<Run>& run) {
  const Deadline begins(kBeginBound);
  Completed completed;
  for (bool waits = true; waits; sched_yield()) {
    {
      const auto held = lock();
      captured_here = run.get();
      progress_all(completed);
      captured_here = nullptr;
      waits = queue.launching || (!run->started() && !run->finished());
      if (waits && !queue.launching && begins.passed()) {
        std::erase(queue.pending, run);
        run->fail(Status(Code::invalid_argument,
                         run->describe() +
                             ": earlier operations of this thread are still waiting to begin; "
                             "wait for them before a graph is captured"));
        completed.push_back(run);
        --runs_;
        waits = false;
      }
    }
    announce(completed);
  }
}

// Calls a native library without the lock, because the call may last. Other threads progress all
// other queues meanwhile.
void Executor::launch(RunQueue& queue, const std::function<void()>& call) {
  const auto retake_lock = [&] {
    lock().release();
    queue.launching = false;
    if (role == Role::waiter) ++waiters_;
    if (role == Role::progress) in_library_ = false;
  };
  if (role == Role::progress) {
    std::lock_guard lock(deputy_mutex_);
    in_library_ = true;
    deputy_wanted_.notify_all();
  }
  queue.launching = true;
  if (role == Role::waiter && --waiters_ == 0) wake_progress_thread();
  mutex_.unlock();
  try {
    call();
  } catch (...) {
    retake_lock();
    throw;
  }
  retake_lock();
}

void Executor::start_helpers() {
  std::lock_guard lock(deputy_mutex_);
  if (stop_) return;
  if (!deputy_.started()) deputy_.start("hetcomm-deputy", [this] { deputy_loop(); });
  if (!watcher_.started()) watcher_.start("hetcomm-watcher", [this] { watcher_loop(); });
}

// Without a deputy, operations of other groups would stand still while no thread waits for them.
void Executor::deputy_loop() {
  Turns turns;
  while (!stop_) {
    {
      std::unique_lock waiting(deputy_mutex_);
      deputy_wanted_.wait(waiting, [this] { return in_library_ || stop_; });
    }
    while (in_library_ && !stop_) safe_turn(turns);
    wake_progress_thread();  // the deputy has consumed events that the progress thread needs
  }
}

}  // namespace hetcomm
