#pragma once

#include <c10/core/Event.h>

#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "comm/communicator.h"
#include "torch/call.h"
#include "torch/interrupt.h"

namespace hetcomm {

// torch's handle on an operation on device tensors. wait() blocks the current stream by events. The
// host waits only until all that is left of the operation is in streams, because a stream that
// waits for the host may hold up the very streams that the host needs; see docs/devices.md. The log
// has failures that come after wait(), and the group's next call throws them. Thread-safe.
class StreamedWork : public c10d::Work {
 public:
  // Enqueues call.finish in the group's side stream: at once if the operation is in streams, else
  // when the operation is over.
  StreamedWork(hetcomm::Work work, Call call, int rank, uint64_t sequence,
               std::shared_ptr<GroupReference> group);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  // With a timeout the host waits until the operation is over.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  void abort() override;
  std::vector<at::Tensor> result() override { return shared_->outputs; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }
  float getDuration() const override { return duration(work_, timing_); }

 private:
  // Listeners of the operation share it, because the user may drop this handle earlier.
  struct Shared {
    std::shared_ptr<const TorchDevice> device;
    std::vector<at::Tensor> outputs, kept;
    std::function<void()> finish;  // of the call; null once it is enqueued
    std::once_flag once;
    std::optional<c10::Event> finished;  // after `finish`, if there was one
    Status outcome;                      // of the operation and of `finish`
    c10::intrusive_ptr<c10::ivalue::Future> future;

    const Status& complete(const Status& status);  // enqueues `finish` once
    void complete_future();                        // after complete()
  };

  void wait_in_streams();
  void block(const c10::Stream& stream);  // until the operation and call.finish are over

  hetcomm::Work work_;
  uint64_t sequence_;
  std::shared_ptr<const Timing> timing_;
  std::shared_ptr<GroupReference> group_;
  std::shared_ptr<Shared> shared_;
  bool finishes_later_ = false;  // call.finish comes after the operation
  bool future_later_ = false;    // the future is completed by a listener; under mutex_
  std::once_flag logs_failure_;
};

}  // namespace hetcomm
