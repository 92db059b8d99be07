#pragma once

#include <chrono>
#include <functional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "plan/plan.h"

namespace hetcomm {

// One operation as torch asks for it, on its way to the communicator: checks tensors, lays lists
// out as one buffer, and keeps what must live until the end. Belongs to one thread. All functions
// throw Error(invalid_argument).
struct Call {
  using Tensors = std::vector<at::Tensor>;

  Call(const char* operation, c10d::OpType type, Collective collective, int rank, int size)
      : operation(operation), type(type), rank(rank), size(size) {
    spec.collective = collective;
  }

  const char* operation;  // torch's name, for messages
  c10d::OpType type;
  int rank, size;
  Spec spec;
  const void* input = nullptr;
  void* output = nullptr;
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  bool will_wait = false;
  Tensors keep, outputs;  // what the operation uses, what its result is
  std::function<void()> finish;

  void reduce_by(const c10d::ReduceOp& op);
  void rooted(int64_t root);

  // The only tensor, replaced by the result.
  void in_place(const Tensors& tensors);
  void read(const at::Tensor& tensor);
  void write(const at::Tensor& tensor);

  // A part is what one rank contributes or gets; it fixes dtype and count, so it comes first. The
  // parts of all ranks are one tensor, or a list that in rooted operations only the root has.
  void read_part(const at::Tensor& tensor);
  void write_part(const at::Tensor& tensor);
  void read_all(const at::Tensor& tensor);
  void write_all(const at::Tensor& tensor);
  void read_list(const std::vector<Tensors>& lists);
  void write_list(const std::vector<Tensors>& lists);
  void write_flat(const Tensors& list);  // parts of any sizes

 private:
  const Tensors* only_list(const std::vector<Tensors>& lists, const char* what) const;

  at::Tensor part_;
  bool rooted_ = false;
};

}  // namespace hetcomm
