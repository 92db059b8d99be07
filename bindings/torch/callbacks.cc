#include "torch/callbacks.h"

#include <pthread.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

namespace hetcomm {
namespace {

constexpr size_t kMostIdle = 2;

struct CallbackThreads {
  std::mutex mutex;
  std::condition_variable news, finished;
  std::deque<std::function<void()>> tasks;
  size_t idle = 0, busy = 0;
};

// By process, since a forked child has no threads; never destroyed, because they are detached.
CallbackThreads& callback_threads() {
  static auto* mutex = new std::mutex;
  static auto* all = new std::map<pid_t, CallbackThreads>;
  std::lock_guard lock(*mutex);
  return (*all)[getpid()];
}

void serve(CallbackThreads& threads) {
  pthread_setname_np(pthread_self(), "hetcomm-future");
  std::unique_lock lock(threads.mutex);
  while (threads.idle < kMostIdle || !threads.tasks.empty()) {
    ++threads.idle;
    threads.news.wait(lock, [&] { return !threads.tasks.empty(); });
    --threads.idle;
    std::function<void()> task = std::move(threads.tasks.front());
    threads.tasks.pop_front();
    ++threads.busy;
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
    --threads.busy;
    threads.finished.notify_all();
  }
}

}  // namespace

void run_callback(std::function<void()> task) {
  CallbackThreads& threads = callback_threads();
  std::unique_lock lock(threads.mutex);
  if (threads.tasks.size() >= threads.idle) {
    try {
      std::thread(serve, std::ref(threads)).detach();
    } catch (const std::system_error&) {  // no threads left: then it must do without
      lock.unlock();
      return task();
    }
  }
  threads.tasks.push_back(std::move(task));
  threads.news.notify_one();
}

void finish_callbacks(std::chrono::nanoseconds bound) {
  CallbackThreads& threads = callback_threads();
  std::unique_lock lock(threads.mutex);
  threads.finished.wait_for(lock, bound,
                            [&] { return threads.tasks.empty() && threads.busy == 0; });
}

}  // namespace hetcomm
