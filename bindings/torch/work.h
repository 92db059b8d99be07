#pragma once

#include <algorithm>
#include <functional>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "comm/communicator.h"
#include "torch/call.h"
#include "torch/interrupt.h"

namespace hetcomm {

// torch's handle on an operation on host tensors: wait() blocks the caller. Keeps the tensors alive
// until the operation is over. Thread-safe.
class TorchWork : public c10d::Work {
 public:
  // call.finish runs once after success, before the handle appears complete.
  TorchWork(hetcomm::Work work, Call call, int rank, uint64_t sequence,
            std::shared_ptr<GroupReference> group);
  ~TorchWork() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  // Calls Python's signal handlers, see handle_signals().
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override {}
  void abort() override;
  int sourceRank() const override { return work_.source(); }
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }
  float getDuration() const override { return duration(work_, timing_); }

 private:
  // Listeners of the operation share it, because the user may drop this handle earlier.
  struct Shared {
    std::vector<at::Tensor> outputs;
    std::function<void()> finish, end_of_profile;
    std::once_flag once;
    c10::intrusive_ptr<c10::ivalue::Future> future;

    Status outcome;  // of the operation and of `finish`

    // Runs `finish` once; returns the outcome.
    const Status& complete(const Status& status);
    void complete_future();  // after complete()
  };

  void await_future();

  hetcomm::Work work_;
  uint64_t sequence_;
  std::shared_ptr<const Timing> timing_;
  std::shared_ptr<GroupReference> group_;
  std::shared_ptr<Shared> shared_;
};

// Waits for `work` for at most `timeout`; without a timeout, for that of the operation. Throws the
// exception of a signal's handler rather than return a failure of the operation.
Status wait_for(const hetcomm::Work& work, std::chrono::milliseconds timeout,
                GroupReference& group);

// Throws: only whole groups can be aborted.
[[noreturn]] void throw_cannot_abort();

// Throws the Python exception of the status's code (hetcomm.TimeoutError, ...).
[[noreturn]] void throw_python(const Status& status);

std::exception_ptr python_exception(const Status& status);

// Calls `function`, turning hetcomm::Error into its Python exception.
template <typename Function>
auto with_python_errors(Function&& function) {
  try {
    return function();
  } catch (const Error& error) {
    throw_python(error.status());
  }
}

}  // namespace hetcomm
