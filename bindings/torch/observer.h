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

// The duration of one operation, from the call to its end. Observer::watch() sets the end.
struct Timing {
  using Moment = decltype(c10d::WorkInfo::timeStarted);  // its clock depends on torch's version
  using Duration = std::chrono::duration<float>;

  const Moment started = Moment::clock::now();
  std::promise<Duration> end;
  const std::shared_future<Duration> took = end.get_future().share();
};

// In milliseconds. Throws if the operation is under way, or the group does not time operations.
float duration(const Work& work, const std::shared_ptr<const Timing>& timing);

// Calls a group's hook for each operation that ends. Shared by the group and its operations: either
// may end first. Thread-safe.
class Observer : public std::enable_shared_from_this<Observer> {
 public:
  using Hook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;

  void set_hook(Hook hook);  // throws Error if there is one already
  bool has_hook() const { return has_hook_; }
  // At the end of the work, ends `timing`, and calls the hook if the work succeeded.
  void watch(const Work& work, std::shared_ptr<Timing> timing, c10d::OpType type,
             uint64_t sequence);
  // Waits until the hook has been called for all operations; false if that takes longer.
  bool wait(const Deadline& deadline);

 private:
  void call_hook(const c10d::WorkInfo& info) const;

  std::mutex mutex_;
  std::condition_variable reported_;
  int unreported_ = 0;  // operations
  Hook hook_;           // set once, before has_hook_
  std::atomic<bool> has_hook_{false};
};

}  // namespace hetcomm
