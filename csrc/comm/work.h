#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "exec/executor.h"

namespace hetcomm {

// An operation under way. Cheap to copy; may outlast the communicator. In a child of fork(), an
// unfinished operation of the parent counts as done, and has failed.
class Work {
 public:
  Work(std::shared_ptr<Executor> executor, std::shared_ptr<Run> run)
      : executor_(std::move(executor)), run_(std::move(run)) {}

  bool done() const { return run_->done() || run_->inherited(); }
  const Status& status() const;                         // valid once done()
  bool inherited() const { return run_->inherited(); }  // by this process from its parent
  // Waits until done, at most for this time; true if done. The operation goes on.
  bool done_within(std::chrono::nanoseconds time) const;
  // Waits until done; Code::timeout after timeout().
  Status wait() const { return done_within(timeout()) ? status() : timeout_error(timeout()); }
  // The bound of wait(). The operation ends by itself before.
  std::chrono::nanoseconds timeout() const { return run_->timeout() + std::chrono::seconds(5); }
  // The error of a wait that took this long without success.
  Status timeout_error(std::chrono::nanoseconds after) const;
  void when_done(std::function<void(const Status&)> listener) const;
  // Keeps `memory` alive until nothing refers to the operation's buffers any more.
  void keep_alive(std::shared_ptr<void> memory) const;
  // On a device: whether all that is left of the operation is in streams, or it is over. A stream
  // can wait for it from then on.
  bool in_streams() const;
  // Waits until in_streams(), at most for this time; true if so.
  bool in_streams_within(std::chrono::nanoseconds time) const;
  // `stream` waits until the operation is over, once in_streams(). Returns the failure of an
  // operation that is over. The stream also goes on after a later failure; status() and later calls
  // report the failure.
  Status block_stream(Stream stream) const;
  // An error if `stream` is captured into a graph that would wait for this operation.
  Status check_not_captured(Stream stream) const;
  // The source line that waits for this operation, for errors. For operations that are late.
  void note_caller(const std::string& line) const;
  std::string describe() const;
  // The steps that the operation waits for, for people.
  std::string where() const;
  // The sender's rank; valid once a receive is done.
  int source() const { return run_->plan().spec.root; }
  // The times of the steps; valid once done(), null unless the communicator was tracing.
  std::shared_ptr<const Trace> trace() const { return run_->trace(); }

 private:
  std::shared_ptr<Executor> executor_;
  std::shared_ptr<Run> run_;
};

}  // namespace hetcomm
