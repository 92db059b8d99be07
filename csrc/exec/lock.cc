// The executor's lock, and the end of a process whose lock a library keeps for ever.

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "base/config.h"
#include "base/log.h"
#include "exec/executor.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::seconds kWarning = 10s;
constexpr std::chrono::seconds kLongestAbsence = 5s;  // between two looks at the same call

// std::timed_mutex has the same wait. The thread sanitizer of GCC 12 only knows the wait by the
// wall clock, which may be set back meanwhile.
bool lock_for(std::mutex& mutex, std::chrono::nanoseconds time) {
#ifdef __SANITIZE_THREAD__
  constexpr clockid_t clock = CLOCK_REALTIME;
#else
  constexpr clockid_t clock = CLOCK_MONOTONIC;
#endif
  timespec until{};
  clock_gettime(clock, &until);
  const auto nanoseconds = until.tv_nsec + time % 1s / 1ns;
  until.tv_sec += time / 1s + nanoseconds / 1'000'000'000;
  until.tv_nsec = nanoseconds % 1'000'000'000;
#ifdef __SANITIZE_THREAD__
  return pthread_mutex_timedlock(mutex.native_handle(), &until) == 0;
#else
  return pthread_mutex_clocklock(mutex.native_handle(), clock, &until) == 0;
#endif
}

}  // namespace

std::unique_lock<std::mutex> Executor::lock() { return lock_within(kLongestTimeout); }

std::unique_lock<std::mutex> Executor::lock_within(std::chrono::nanoseconds time) {
  if (std::unique_lock held(mutex_, std::try_to_lock); held) return held;
  const Deadline deadline(time);
  ++lock_waiters_;
  bool held = false;
  do {
    held = lock_for(mutex_, std::min<std::chrono::nanoseconds>(kLook, deadline.left()));
    if (!held) look_at_lock();
  } while (!held && !deadline.passed());
  --lock_waiters_;
  return held ? std::unique_lock(mutex_, std::adopt_lock) : std::unique_lock<std::mutex>();
}

// Under the lock.
void Executor::note_timeout(std::chrono::nanoseconds timeout) {
  if (timeout > longest_timeout_.load(std::memory_order_relaxed)) longest_timeout_ = timeout;
}

// Called by a thread that cannot have the lock. Counts looks of all threads, one in a second at
// most, because time passes also while the whole process is stopped. A round shows that the lock
// has changed hands.
void Executor::look_at_lock() {
  const auto now = Clock::now();
  auto next = next_look_.load();
  if (now < next || !next_look_.compare_exchange_strong(next, now + kLook)) return;
  const uint32_t round = rounds_.load();
  const bool unchanged = last_look_.exchange(round) == round;
  if (!unchanged || now > next + kLongestAbsence) {
    looks_ = 0;
  } else {
    tell_of_stuck_library(++looks_ * kLook);
  }
}

void Executor::watcher_loop() {
  std::unique_lock sleep(deputy_mutex_);
  while (!watcher_ends_.wait_for(sleep, kLook, [this] { return stop_.load(); })) {
    sleep.unlock();
    if (any_active() && !try_lock()) look_at_lock();
    sleep.lock();
  }
}

// No thread can be taken out of a library. Without the process, the other ranks and the launcher
// can go on. A driver may rightly wait for work of the device, and that for another rank, until the
// timeout of an operation.
void Executor::tell_of_stuck_library(std::chrono::seconds stuck) {
  const bool bounded = library_bound_ > 0s;
  const bool ends = bounded && stuck - library_bound_ >= longest_timeout_.load();
  if (!ends && stuck != kWarning) return;  // one warning for each call
  const std::string process = std::to_string(getpid());
  const std::string text = "process " + process + ": a thread has kept the engine's lock for " +
                           format_seconds(stuck) +
                           ", as in a driver or UCX that stands still, and no operation goes on; ";
  if (ends) {
    log(LogLevel::error, text +
                             "the timeout of each operation has passed since, and the time of "
                             "HETCOMM_LIBRARY_TIMEOUT, so the process ends");
    std::abort();
  }
  log(LogLevel::warning,
      text + "see where: gdb -p " + process + " -batch -ex 'thread apply all bt'" +
          (bounded ? "; the process ends " + format_seconds(library_bound_) +
                         " after the longest timeout of its operations (HETCOMM_LIBRARY_TIMEOUT)"
                   : ""));
}

}  // namespace hetcomm
