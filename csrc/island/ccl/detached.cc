#include "island/ccl/detached.h"

#include <pthread.h>

#include <condition_variable>
#include <csignal>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/status.h"

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
    std::thread([state = state_, function = std::move(function)]() mutable {
      pthread_setname_np(pthread_self(), "hetcomm-ccl");
      function();
      function = nullptr;  // frees its captures before wait() returns
      std::lock_guard lock(state->mutex);
      state->over = true;
      state->ended.notify_all();
    }).detach();
  } catch (const std::system_error& failed) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw Error(Code::vendor, std::string("cannot start a thread: ") + failed.what() +
                                  "; raise the limit of processes");
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

bool Detached::wait(Deadline deadline) const {
  std::unique_lock lock(state_->mutex);
  return state_->ended.wait_for(lock, deadline.left(), [this] { return state_->over; });
}

}  // namespace hetcomm
