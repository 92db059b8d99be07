#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "exec/executor.h"

namespace hetcomm {

// An operation under way. Cheap to copy. The communicator may be destroyed first. In a child of
// fork(), an unfinished operation of the parent counts as done, and has failed.
class Work {
 public:
  Work(std::shared_ptr<Executor> executor, std::shared_ptr<Run> run)
      : executor_(std::move(executor)), run_(std::move(run)) {}

  bool done() const { return run_->done() || run_->inherited(); }
  const Status& status() const;                         // valid once done()
  bool inherited() const { return run_->inherited(); }  // by this process from its parent
  // Waits until done, at most for this time; true if done. The operation goes on.
  bool done_within(std::chrono::nanoseconds time) const;
  // Waits until done; Code::timeout if that takes longer than `timeout`.
  Status wait(std::chrono::nanoseconds timeout) const {
    return done_within(timeout) ? status() : timeout_error(timeout);
  }
  Status wait() const { return wait(timeout()); }
  // The bound of wait(): by then the operation has ended by itself.
  std::chrono::nanoseconds timeout() const { return run_->timeout() + std::chrono::seconds(5); }
  // Says that the operation is not done after this time.
  Status timeout_error(std::chrono::nanoseconds after) const;
  void when_done(std::function<void(const Status&)> listener) const;
  // Keeps `memory`, which holds the buffers, until nothing refers to the buffers any more.
  void keep_alive(std::shared_ptr<void> memory) const;
  // On a device: `stream` waits until the operation is over, and the host goes on at once. If the
  // operation fails, the stream goes on too; status() and later calls tell.
  Status block_stream(Stream stream) const;
  std::string describe() const;
  // What the operation waits for, for people.
  std::string where() const;
  // Of a receive, once it is done: the rank of the sender.
  int source() const { return run_->plan().spec.root; }
  // Once it is done: when its steps started and ended; null unless the communicator traced it.
  std::shared_ptr<const Trace> trace() const { return run_->trace(); }

 private:
  std::shared_ptr<Executor> executor_;
  std::shared_ptr<Run> run_;
};

}  // namespace hetcomm
