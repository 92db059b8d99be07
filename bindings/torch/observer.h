#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "base/deadline.h"
#include "comm/communicator.h"

namespace hetcomm {

// How long one operation took, from the call to its end; whoever sees the end sets it, once.
struct Timing {
  using Moment = decltype(c10d::WorkInfo::timeStarted);  // another clock in older torch
  using Duration = std::chrono::duration<float>;

  const Moment started = Moment::clock::now();
  std::promise<Duration> end;
  const std::shared_future<Duration> took = end.get_future().share();
};

// In milliseconds. Throws if the group does not time its operations, or this one is under way.
float duration(const Work& work, const std::shared_ptr<const Timing>& timing);

// Tells a group's hook of the operations that end. Shared by the group and its operations, so that
// either may go first. Thread-safe.
class Observer : public std::enable_shared_from_this<Observer> {
 public:
  using Hook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

  void set(Hook hook);  // throws Error if there is one
  bool has_hook() const { return has_hook_; }
  // Ends `timing` when the work does, and calls the hook if that was a success.
  void watch(const Work& work, std::shared_ptr<Timing> timing, c10d::OpType type,
             uint64_t sequence);
  // Until the hook has been called for all; false if that takes longer.
  bool wait(const Deadline& deadline);

 private:
  void tell(const c10d::WorkInfo& info) const;

  std::mutex mutex_;
  std::condition_variable told_;
  int untold_ = 0;
  Hook hook_;  // set once, before has_hook_
  std::atomic<bool> has_hook_{false};
};

}  // namespace hetcomm
