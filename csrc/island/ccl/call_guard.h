#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace hetcomm {

// Notices a call of a library that does not return, for calls made under a lock that others need.
// One thread of the process looks after all guards; a call costs two stores. Owned by what makes
// the calls, one at a time.
class CallGuard {
 public:
  // `overdue` is called once, on a thread of its own, when a call has gone on for `bound`. It owns
  // what it uses and may still run when the guard is gone.
  CallGuard(std::chrono::nanoseconds bound, std::function<void()> overdue);
  ~CallGuard();
  CallGuard(const CallGuard&) = delete;

  void enter();
  void leave();
  bool struck() const;  // some call was overdue

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace hetcomm
