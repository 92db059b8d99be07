#pragma once

#include <c10/core/Event.h>

#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "comm/communicator.h"
#include "torch/call.h"
#include "torch/interrupt.h"

namespace hetcomm {

// torch's handle on an operation on device tensors. wait() blocks the current stream, not the host.
// The log has later failures, and the group's next call throws them. Thread-safe.
class StreamedWork : public c10d::Work {
 public:
  // Enqueues call.finish at once, in the group's side stream.
  StreamedWork(hetcomm::Work work, Call call, int rank, uint64_t sequence,
               std::shared_ptr<GroupReference> group);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  // With a timeout the host waits as well.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  void abort() override;
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }
  float getDuration() const override { return duration(work_, timing_); }

 private:
  void block(const c10::Stream& stream);  // until the operation and call.finish are over

  hetcomm::Work work_;
  uint64_t sequence_;
  std::shared_ptr<const Timing> timing_;
  std::shared_ptr<GroupReference> group_;
  std::shared_ptr<const TorchDevice> device_;
  std::vector<at::Tensor> outputs_, kept_;
  std::optional<c10::Event> finished_;  // after call.finish, if there is one
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::once_flag logs_failure_;
};

}  // namespace hetcomm
