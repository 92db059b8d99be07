#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace hetcomm {

// torch's handle on the operations of one call or batch. As thread-safe as its parts.
class CombinedWork : public c10d::Work {
 public:
  using Parts = std::vector<c10::intrusive_ptr<c10d::Work>>;

  CombinedWork(Parts parts, int rank);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;  // the first one
  // `timeout` bounds all parts together.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;
  void abort() override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override;
  float getDuration() const override;  // of the longest

 private:
  const Parts parts_;
};

// The only part, or a CombinedWork of all parts.
c10::intrusive_ptr<c10d::Work> combined(CombinedWork::Parts parts, int rank);

}  // namespace hetcomm
