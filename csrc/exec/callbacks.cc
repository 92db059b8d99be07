#include "exec/callbacks.h"

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "base/fork.h"
#include "base/log.h"
#include "base/status.h"

namespace hetcomm {
namespace {

constexpr size_t kMostIdle = 2;

struct CallbackThreads {
  std::mutex mutex;
  std::condition_variable news, finished;
  std::deque<std::function<void()>> tasks;
  size_t idle = 0, busy = 0;
};

// By value, so that the task's captures end before the caller takes the lock again.
void run(std::function<void()> task) { run_logged(task); }

void serve(CallbackThreads& threads) {
  pthread_setname_np(pthread_self(), "hetcomm-future");
  std::unique_lock lock(threads.mutex);
  while (threads.idle < kMostIdle || !threads.tasks.empty()) {
    ++threads.idle;
    threads.news.wait(lock, [&] { return !threads.tasks.empty(); });
    --threads.idle;
    auto task = std::move(threads.tasks.front());
    threads.tasks.pop_front();
    ++threads.busy;
    lock.unlock();
    run(std::move(task));
    lock.lock();
    --threads.busy;
    threads.finished.notify_all();
  }
}

}  // namespace

void run_logged(const std::function<void()>& task) {
  try {
    task();
  } catch (...) {
    log(LogLevel::error, "a listener of an operation raised: " + status_of_caught().text());
  }
}

void run_callback(std::function<void()> task) {
  auto& threads = of_process<CallbackThreads>();
  std::unique_lock lock(threads.mutex);
  try {
    if (threads.tasks.size() >= threads.idle) std::thread(serve, std::ref(threads)).detach();
    threads.tasks.push_back(std::move(task));
  } catch (const std::exception&) {  // no thread or memory is left, so the task runs here
    lock.unlock();
    return run(std::move(task));
  }
  threads.news.notify_one();
}

void finish_callbacks(std::chrono::nanoseconds bound) {
  auto& threads = of_process<CallbackThreads>();
  std::unique_lock lock(threads.mutex);
  threads.finished.wait_for(lock, bound,
                            [&] { return threads.tasks.empty() && threads.busy == 0; });
}

}  // namespace hetcomm
