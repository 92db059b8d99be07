#pragma once

#include <pthread.h>

#include <atomic>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/deadline.h"
#include "base/status.h"

namespace hetcomm {

// A thread that runs `life()`. `name`: a literal of at most 15 characters. Throws Error(vendor) if
// the system permits no further thread: a limit of this rank is the consequence of no other rank.
template <typename Life>
std::thread start_thread(const char* name, Life life) {
  try {
    return std::thread([name, life = std::move(life)]() mutable {
      pthread_setname_np(pthread_self(), name);
      life();
    });
  } catch (const std::system_error& error) {
    throw Error(Code::vendor, std::string("cannot start the thread \"") + name +
                                  "\": " + error.what() +
                                  "; raise the limit of processes (ulimit -u, or pids.max of "
                                  "the control group) or of addresses (ulimit -v)");
  }
}

// A thread whose end is awaited for a bounded time. Used by one thread.
class BoundedThread {
 public:
  // Like start_thread().
  template <typename Life>
  void start(const char* name, Life life) {
    ended_ = std::make_shared<std::atomic<bool>>(false);
    thread_ = start_thread(name, [end = End(ended_), life = std::move(life)]() mutable { life(); });
  }
  bool started() const { return thread_.joinable(); }
  // False if the thread has not ended by the deadline.
  bool join(const Deadline& deadline) {
    while (started() && !*ended_) {
      if (deadline.passed()) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (started()) thread_.join();
    return true;
  }

 private:
  using Flag = std::shared_ptr<std::atomic<bool>>;
  struct End {  // with the thread, however it ends
    Flag ended;
    explicit End(Flag flag) : ended(std::move(flag)) {}
    End(End&&) = default;
    ~End() {
      if (ended) *ended = true;
    }
  };

  Flag ended_;
  std::thread thread_;
};

}  // namespace hetcomm
