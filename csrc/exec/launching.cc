// Calls into native libraries, which may not return for long, and waits until a recorded run is in
// its stream.

#include <sched.h>

#include <exception>

#include "exec/executor.h"

namespace hetcomm {
namespace {

constexpr auto kBeginBound = std::chrono::seconds(10);

}  // namespace

thread_local const Run* Executor::recorded_here = nullptr;

// A recorded run must be in the stream when the caller goes on.
void Executor::await_recorded(RunQueue& queue, const std::shared_ptr<Run>& run) {
  const Deadline begins(kBeginBound);
  Completed completed;
  for (bool waits = true; waits; sched_yield()) {
    {
      const auto held = lock();
      recorded_here = run.get();
      progress_all(completed);
      recorded_here = nullptr;
      waits = queue.launching || (!run->started() && !run->finished());
      if (waits && !queue.launching && begins.passed()) {
        std::erase(queue.pending, run);
        run->fail(Status(Code::invalid_argument,
                         run->describe() +
                             ": earlier operations of the group are still waiting to begin; wait "
                             "for them before a graph is recorded"));
        completed.push_back(run);
        --runs_;
        waits = false;
      }
    }
    announce(completed);
  }
}

// Calls a native library, which may not return for long, without the lock. Other threads meanwhile
// move everything forward but this queue.
void Executor::launch(RunQueue& queue, const std::function<void()>& call) {
  const auto back = [&] {
    ++contenders_;
    mutex_.lock();
    --contenders_;
    queue.launching = false;
    if (role == Role::waiter) ++waiters_;
    if (role == Role::progress) away_ = false;
  };
  if (role == Role::progress) deputise();
  queue.launching = true;
  if (role == Role::waiter && --waiters_ == 0) kick();
  mutex_.unlock();
  try {
    call();
  } catch (...) {
    back();
    throw;
  }
  back();
}

// Else operations of other groups for which nobody waits would stand still.
void Executor::deputise() {
  std::lock_guard lock(deputy_mutex_);
  if (!deputy_.joinable() && !stop_) deputy_ = start_thread("hetcomm-deputy", &Executor::stand_in);
  away_ = true;
  deputy_news_.notify_all();
}

void Executor::stand_in() {
  Turns turns;
  while (!stop_) {
    {
      std::unique_lock waiting(deputy_mutex_);
      deputy_news_.wait(waiting, [this] { return away_ || stop_; });
    }
    while (away_ && !stop_) safe_turn(turns);
    kick();  // the progress thread looks at the events that this thread has taken
  }
}

}  // namespace hetcomm
