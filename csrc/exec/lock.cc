// The executor's lock, and the end of a process whose lock a library keeps for ever.

#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>

#include "base/config.h"
#include "base/log.h"
#include "exec/executor.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::seconds kLook = 1s, kFirstWarning = 10s;
constexpr std::chrono::seconds kLongestAbsence = 5s;  // between two looks at the same call

// The thread sanitizer of GCC 12 does not know std::timed_mutex.
bool lock_for(std::mutex& mutex, std::chrono::seconds time) {
  timespec until{};
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += time.count();
  return pthread_mutex_timedlock(mutex.native_handle(), &until) == 0;
}

}  // namespace

std::unique_lock<std::mutex> Executor::lock() {
  if (std::unique_lock held(mutex_, std::try_to_lock); held) return held;
  ++lock_waiters_;
  while (!lock_for(mutex_, kLook)) look_at_lock();
  --lock_waiters_;
  return {mutex_, std::adopt_lock};
}

std::unique_lock<std::mutex> Executor::lock_within(std::chrono::nanoseconds time) {
  const Deadline deadline(time);
  std::unique_lock held(mutex_, std::try_to_lock);
  ++lock_waiters_;
  while (!held && !deadline.passed()) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    held = try_lock();
  }
  --lock_waiters_;
  return held;
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

// No thread can be taken out of a library. Without the process, the other ranks and the launcher
// can go on.
void Executor::tell_of_stuck_library(std::chrono::seconds stuck) {
  const bool bounded = library_bound_ > 0s, ends = bounded && stuck >= library_bound_;
  if (!ends && stuck < kFirstWarning) return;
  const std::string text = "a thread of this process has been inside a library for " +
                           format_seconds(stuck) +
                           ", such as a device's driver or UCX, and no operation goes on; ";
  if (ends) {
    log(LogLevel::error,
        text + "the process ends (HETCOMM_LIBRARY_TIMEOUT), so that the job can be restarted");
    std::abort();
  }
  if (told_of_stuck_library_.exchange(true)) return;
  log(LogLevel::warning,
      text + "see where: gdb -p " + std::to_string(getpid()) + " -batch -ex 'thread apply all bt'" +
          (bounded ? "; the process ends after " + format_seconds(library_bound_) +
                         " (HETCOMM_LIBRARY_TIMEOUT)"
                   : ""));
}

}  // namespace hetcomm
