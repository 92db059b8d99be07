#pragma once

#include <algorithm>
#include <functional>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "comm/communicator.h"
#include "torch/call.h"
#include "torch/interrupt.h"

namespace hetcomm {

// torch's handle on an operation for whose end the host waits. Keeps the tensors alive until it is
// complete. Thread-safe.
class TorchWork : public c10d::Work {
 public:
  // What remains to do after the operation (call.finish) is done once after success, before anybody
  // sees it complete.
  TorchWork(hetcomm::Work work, Call call, int rank, uint64_t sequence,
            std::shared_ptr<GroupReference> group);
  ~TorchWork() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  // On the main thread Ctrl-C ends the wait, see handle_signals().
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override {}
  void abort() override;
  int sourceRank() const override { return work_.source(); }
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }
  float getDuration() const override { return duration(work_, timing_); }

 private:
  // What outlives this handle when the user drops it before the operation is complete.
  struct Shared {
    std::vector<at::Tensor> outputs;
    std::function<void()> finish, end_of_profile;
    std::once_flag once;
    c10::intrusive_ptr<c10::ivalue::Future> future;

    Status outcome;

    // Does once what remains after the operation; returns how it ended in all.
    const Status& complete(const Status& status);
    void tell();  // the future, after that
  };

  void complete_future();

  hetcomm::Work work_;
  uint64_t sequence_;
  std::shared_ptr<const Timing> timing_;
  std::shared_ptr<GroupReference> group_;
  std::shared_ptr<Shared> shared_;
};

// Waits for `work`, at most `timeout`, or without one until the operation has surely given up.
// Throws the exception of a signal's handler, also where the operation has failed meanwhile.
Status wait_for(const hetcomm::Work& work, std::chrono::milliseconds timeout,
                GroupReference& group);

// A single operation cannot be aborted; throws.
[[noreturn]] void refuse_abort();

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
