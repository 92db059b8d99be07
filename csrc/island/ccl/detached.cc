#include "island/ccl/detached.h"

#include <condition_variable>
#include <csignal>
#include <mutex>
#include <utility>

#include "base/start_thread.h"

namespace hetcomm {

struct Detached::State {
  std::mutex mutex;
  std::condition_variable ended;
  bool over = false;
};

Detached::Detached(std::function<void()> function) : state_(std::make_shared<State>()) {
  // Signals are for the threads of the application.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    start_thread("hetcomm-ccl", [state = state_, function = std::move(function)]() mutable {
      function();
      function = nullptr;  // frees its captures before wait() returns
      std::lock_guard lock(state->mutex);
      state->over = true;
      state->ended.notify_all();
    }).detach();
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

bool Detached::wait(Deadline deadline) const {
  std::unique_lock lock(state_->mutex);
  return state_->ended.wait_for(lock, deadline.left(), [this] { return state_->over; });
}

}  // namespace hetcomm
