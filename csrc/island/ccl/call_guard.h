#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace hetcomm {

// Watches calls into a library that may not return, for callers that hold a lock. One thread of the
// process watches all guards, and a call costs two stores. Owned by the caller; one call at a time.
class CallGuard {
 public:
  // `overdue` runs once, on a thread of its own, when a call has taken longer than `bound`. It must
  // own all that it uses, because it may run after the guard's end.
  CallGuard(std::chrono::nanoseconds bound, std::function<void()> overdue);
  ~CallGuard();
  CallGuard(const CallGuard&) = delete;

  void enter();
  void leave();
  bool fired() const;  // some call was overdue

 private:
  struct State;
  struct Watch;
  std::shared_ptr<State> state_;
};

}  // namespace hetcomm
