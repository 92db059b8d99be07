// How threads wait in an executor: spin, yield, sleep, and hand over to one another.

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/events.h"
#include "base/pause.h"
#include "exec/executor.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

// A waiting thread polls so many times in a row with a pause, then with a yield, then sleeps. Only
// shared memory answers fast enough to be worth a pause, so a thread that waits for the network
// yields. Pauses without success halve the number of later pauses: the awaited rank may need this
// processor. Pauses with success raise the number slowly, because a rank that keeps other ranks
// from a processor succeeds too, only later.
constexpr uint32_t kMostSpins = 200;  // 15 to 31 us
constexpr uint32_t kMoreSpins = 8;
constexpr uint32_t kFewestSpins = 32;
constexpr uint32_t kYields = 200;
// A yield lasts milliseconds where many programs want the processor, so a thread checks its
// deadline every so many yields.
constexpr uint32_t kYieldLooks = 8;
// A thread that always finds something to do checks its deadline every so many polls.
constexpr uint32_t kBusyLooks = 64;
constexpr int kMostTokens = 64;  // read at once, so that a flood of wake-ups holds up nobody
// Two ranks on one processor never leave it by yielding, even if another processor is free. A
// scheduler looks for a free processor when it wakes a thread. So every so many yields a thread
// sleeps for a moment.
constexpr uint32_t kYieldsOnProcessor = 1'000;
// A peer that leaves a group says so and then closes its links, for which it needs this rank.
constexpr auto kAlert = 50ms;
constexpr auto kAlertPause = 1ms;
// No sleep lasts longer. This bounds the delay of deadlines and of lost wake-ups.
constexpr auto kLongestSleep = 10ms;
// A thread whose deadline has passed still has a fair try at the lock.
constexpr std::chrono::nanoseconds kShortestTry = 50ms;
// Nothing wakes a thread when a device has finished, so the thread polls again after this time.
constexpr std::chrono::nanoseconds kDeviceSleep = 50us;

}  // namespace

thread_local Executor::Role Executor::role = Role::none;

bool Executor::wait(Run& run, const Deadline& deadline) {
  if (run.done()) return true;
  begin_waiting();
  uint32_t idle = 0, busy = 0;
  bool refused = false;
  Completed completed;
  Completion::Aftermath own;
  const auto keep_own = [&own](Completion::Aftermath aftermath) {
    if (!aftermath.empty()) own = std::move(aftermath);
  };
  while (!run.done()) {
    if (lock_waiters_.load(std::memory_order_relaxed) > 0) sched_yield();
    bool moved = false;
    std::unique_lock lock(mutex_, std::try_to_lock);
    refused = !lock;
    if (!refused) {
      moved = progress_all(completed);
      lock.unlock();
      if (!completed.empty()) keep_own(announce(completed, &run));
    }
    const uint32_t spins = spins_.load(std::memory_order_relaxed);
    if (moved) {
      if (idle > 0 && idle < spins) spins_.store(std::min(spins + kMoreSpins, kMostSpins));
      idle = 0;
      if (++busy % kBusyLooks == 0 && deadline.passed()) break;  // other groups' work may never end
      continue;
    }
    ++idle;
    const bool yields = oversubscribed_ || awaits_network_.load(std::memory_order_relaxed) ||
                        awaits_same_processor_.load(std::memory_order_relaxed);
    if (idle < spins && !yields) {
      pause();
    } else if (idle < kMostSpins + kYields) {
      if (idle < kMostSpins) {
        if (!yields) spins_.store(std::max(spins / 2, kFewestSpins));
        idle = kMostSpins;
      }
      yield_processor();
      if (idle % kYieldLooks == 0 && deadline.passed()) break;
    } else {
      if (deadline.passed()) break;
      keep_own(sleep(std::min<std::chrono::nanoseconds>(kLongestSleep, deadline.left()), &run));
      idle = kMostSpins + kYields / 2;
    }
  }
  if (refused) look_at_lock();  // a caller may wait in many short turns
  end_waiting();
  return run.done();
}

void Executor::yield_processor() {
  const bool same_processor =
      awaits_same_processor_.load(std::memory_order_relaxed) && !oversubscribed_;
  if (same_processor && ++yields_on_processor_ % kYieldsOnProcessor == 0) {
    std::this_thread::sleep_for(1ns);
  } else {
    sched_yield();
  }
}

void Executor::begin_waiting() {
  ++waiters_;
  role = Role::waiter;
}

void Executor::end_waiting() {
  role = Role::none;
  --waiters_;
  if (!any_active()) return;
  if (waiters_.load() == 0) {
    wake_progress_thread();
  } else if (sleepers_.load() > 0) {
    signal_eventfd(completion_event_);
  }
}

void Executor::set_islands_sleeping(bool asleep) {
  for (auto& queue : queues_) {
    Island* island = queue->paths->island();
    if (island && (!asleep || !queue->active.empty())) island->set_sleeping(asleep);
  }
}

Completion::Aftermath Executor::sleep(std::chrono::nanoseconds bound, const Run* awaited) {
  Completed completed;
  {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) {
      look_at_lock();
      sched_yield();
      return {};
    }
    set_islands_sleeping(true);
    ++sleepers_;
    bool moved = progress_all(completed);
    if (!moved && !transports_->prepare_to_sleep()) moved = true;
    // A thread that completes the run looks for sleepers afterwards, so no wake-up is lost.
    if (awaited && awaited->done()) moved = true;
    if (moved) {
      --sleepers_;
      set_islands_sleeping(false);
      lock.unlock();
      return announce(completed, awaited);
    }
  }
  if (awaits_device_.load(std::memory_order_relaxed)) bound = std::min(bound, kDeviceSleep);
  // An epoll descriptor can itself be polled, and ppoll() takes nanoseconds.
  pollfd news{data_events_, POLLIN, 0};
  const timespec time{bound.count() / 1'000'000'000, bound.count() % 1'000'000'000};
  epoll_event events[4];
  const int count =
      ppoll(&news, 1, &time, nullptr) > 0 ? epoll_wait(data_events_, events, 4, 0) : 0;
  for (int i = 0; i < count; ++i) {
    if (events[i].data.fd == completion_event_) clear_eventfd(completion_event_);
    if (events[i].data.fd == wake_socket_) {
      char tokens[64];
      for (int token = 0; token < kMostTokens; ++token) {
        if (recv(wake_socket_, tokens, sizeof tokens, MSG_DONTWAIT) < 0) break;
      }
    }
  }
  --sleepers_;
  {
    const auto held = lock_within(kLongestSleep);
    if (!held) return {};  // the caller checks its deadline
    idle_rounds_ = 0;      // the next round polls the network
    set_islands_sleeping(false);
    check_deadlines(completed);
  }
  return announce(completed, awaited);
}

bool Executor::wait_in_streams(const Run& run, const Deadline& deadline) {
  return drain([&] { return run.in_streams(); }, deadline);
}

bool Executor::drain(const std::function<bool()>& finished, const Deadline& deadline) {
  begin_waiting();
  bool ended = false;
  Completed completed;
  for (uint32_t idle = 0;; ++idle) {
    if (const auto held = lock_within(std::max(deadline.left(), kShortestTry))) {
      idle_rounds_ = 0;
      if (progress_all(completed)) idle = 0;
      ended = finished();
    }
    announce(completed);
    if (ended || deadline.passed()) break;
    if (idle < kYields) {
      sched_yield();
    } else {
      sleep(std::min<std::chrono::nanoseconds>(1ms, deadline.left()));
    }
  }
  end_waiting();
  return ended;
}

// Polls monitors always, and progresses runs while no thread waits for a run.
void Executor::loop() {
  role = Role::progress;
  Turns turns;
  while (!stop_) safe_turn(turns);
}

void Executor::safe_turn(Turns& turns) {
  try {
    turn(turns);
  } catch (...) {  // no narrower handler caught it, so every group fails
    const Status status = status_of_caught();
    const auto held = lock();
    for (auto& queue : queues_) {
      if (queue->failure.ok()) queue->failure = status;
    }
  }
}

void Executor::turn(Turns& turns) {
  uint32_t& idle = turns.idle;
  const auto now = Clock::now();
  const bool working = any_active() && waiters_.load() == 0;
  const auto alert_pause = now < turns.alert_until ? kAlertPause : Monitor::interval;
  const auto pause = std::min<Clock::duration>(alert_pause, next_poll_.load() - now);
  bool poll_now = now - turns.last_poll >= Monitor::interval || pause <= 0ns;
  if (working) {
    Completed completed;
    bool moved = false;
    if (lock_waiters_.load() == 0) {
      if (std::unique_lock lock(mutex_, std::try_to_lock); lock) moved = progress_all(completed);
    }
    announce(completed);
    if (moved) {
      idle = 0;
    } else if (++idle < kYields) {
      sched_yield();
    } else {
      sleep(kLongestSleep);
      idle = kYields / 2;
    }
  }
  epoll_event events[16];
  const auto bound = std::chrono::ceil<std::chrono::milliseconds>(pause);
  const bool look_only = working || poll_now;
  if (!working || poll_now || idle % 16 == 0) {
    const int count =
        epoll_wait(control_events_, events, 16, look_only ? 0 : static_cast<int>(bound.count()));
    for (int i = 0; i < count; ++i) {
      if (events[i].data.fd == progress_event_) {
        clear_eventfd(progress_event_);
      } else {
        turns.alert_until = Clock::now() + kAlert;
      }
    }
    poll_now |= count > 0 || !working;
  }
  if (!poll_now) return;
  turns.last_poll = Clock::now();
  if (auto due = next_poll_.load(); due <= turns.last_poll) {
    next_poll_.compare_exchange_strong(due, Clock::time_point::max());
  }
  // Peers that close their links need an answer even if this rank has no run.
  if (transports_->main()) {
    if (std::unique_lock lock(mutex_, std::try_to_lock); lock) {
      for (int polls = 0; polls < 64 && progress_transports(); ++polls) {
      }
    }
  }
  poll_monitors();
}

void Executor::poll_monitors() {
  std::lock_guard lock(monitor_mutex_);
  for (size_t i = 0; i < monitors_.size(); ++i) {
    const auto monitor = monitors_[i];  // poll() may remove the monitor
    try {
      monitor->poll();
    } catch (...) {
      const Status status = status_of_caught();
      try {
        monitor->failed(status);
      } catch (...) {  // the next poll fails again
        status_of_caught();
      }
    }
  }
}

}  // namespace hetcomm
