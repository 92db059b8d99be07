#include "base/file_thread.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "base/start_thread.h"

namespace hetcomm {

struct FileThread::State {
  std::mutex mutex;
  std::condition_variable posted, over;
  std::deque<std::function<void()>> tasks;  // the first one is under way
  bool started = false;
};

FileThread::FileThread() : state_(std::make_shared<State>()) {}

void FileThread::serve(State& state) {
  std::unique_lock lock(state.mutex);
  for (;;) {
    state.posted.wait(lock, [&] { return !state.tasks.empty(); });
    const auto task = std::move(state.tasks.front());
    lock.unlock();
    try {
      task();
    } catch (...) {  // no memory; a task tells its other errors by itself
      status_of_caught();
    }
    lock.lock();
    state.tasks.pop_front();
    state.over.notify_all();
  }
}

bool FileThread::post(std::function<void()> task, size_t most) {
  std::unique_lock lock(state_->mutex);
  if (state_->tasks.size() >= most) return false;
  try {
    if (!state_->started) {
      start_thread("hetcomm-file", [state = state_] { serve(*state); }).detach();
      state_->started = true;
    }
  } catch (const Error&) {
    return false;
  }
  state_->tasks.push_back(std::move(task));
  state_->posted.notify_one();
  return true;
}

bool FileThread::wait(std::chrono::nanoseconds bound) const {
  std::unique_lock lock(state_->mutex);
  return state_->over.wait_for(lock, bound, [this] { return state_->tasks.empty(); });
}

}  // namespace hetcomm
