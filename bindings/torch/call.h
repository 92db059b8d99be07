#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "plan/plan.h"
#include "torch/device.h"
#include "torch/observer.h"
#include "torch/tensors.h"

namespace hetcomm {

// Throws Error(invalid_argument) for an operation that hetcomm lacks.
ReduceOp reduce_op(const c10d::ReduceOp& op, const char* operation);

// A call of torch's until the communicator gets it: checks tensors, lays lists out as one buffer,
// and lists the tensors to keep alive. Belongs to one thread. All functions throw
// Error(invalid_argument).
struct Call {
  using Tensors = std::vector<at::Tensor>;

  Call(const char* operation, c10d::OpType type, Collective collective,
       std::shared_ptr<const TorchDevice> device, int rank, int size)
      : operation(operation), type(type), device(std::move(device)), rank(rank), size(size) {
    spec.collective = collective;
  }

  const char* operation;  // torch's name, for messages
  // For torch's profiles: "hetcomm:all_reduce", null without a profiler, and the tensors whose
  // shapes a profile shows.
  const char* title() const;
  const Tensors& profiled() const { return inputs.empty() ? outputs : inputs; }
  c10d::OpType type;
  std::shared_ptr<const TorchDevice> device;
  int rank, size;
  Spec spec;
  const void* input = nullptr;
  void* output = nullptr;
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  bool will_wait = false;
  Tensors inputs, outputs;         // of the user
  Tensors keep;                    // stay alive until the operation is over
  std::function<void()> finish;    // copies results to the outputs; null where nothing is to copy
  std::shared_ptr<Timing> timing;  // null if neither a hook nor the user asks for durations

  // The first tensor decides for all tensors of the call.
  TensorAccess access() const { return access_.value_or(TensorAccess::direct); }
  void check(const at::Tensor& tensor);

  void reduce_by(const c10d::ReduceOp& op);  // after a call that fixes dtype and count
  void rooted(int64_t root);

  // The result replaces the only tensor.
  void in_place(const Tensors& tensors);
  // Tensors of one dtype as one buffer. The result replaces all tensors.
  void in_place_coalesced(const Tensors& tensors);
  // c10d allows several tensors of a rank, of one dtype and shape, for ranks with several devices.
  // Reduces the tensors of this rank first. The result replaces all tensors.
  void in_place_reduced_locally(const Tensors& tensors, const c10d::ReduceOp& op);
  // Only the tensor of this index takes part. The result replaces all tensors.
  void in_place_from_one(const Tensors& tensors, int64_t index);
  // Each list gets the parts of all ranks, in the order of ranks.
  void gather_several(const Tensors& parts, const std::vector<Tensors>& lists);
  void read(const at::Tensor& tensor);
  void write(const at::Tensor& tensor);

  // A part is the contribution or the result of one rank. It comes first, because it fixes dtype
  // and count. The parts of all ranks are one tensor or a list. In rooted operations only the root
  // has them.
  void read_part(const at::Tensor& tensor);
  void write_part(const at::Tensor& tensor);
  void read_all(const at::Tensor& tensor);
  void write_all(const at::Tensor& tensor);
  void read_list(const std::vector<Tensors>& lists);
  void write_list(const std::vector<Tensors>& lists);
  void write_flat(const Tensors& list);  // parts of any sizes
  // Makes these tensors the outputs. `copy` fills them after the operation.
  void set_outputs(Tensors tensors, std::function<void()> copy);

 private:
  // Null on a rank that has no list in a rooted operation.
  const Tensors* only_list(const std::vector<Tensors>& lists, const char* what) const;

  void check_list(const Tensors& list);
  void check_alike(const Tensors& tensors);
  at::Device buffer_device() const;
  // The tensor itself, or a row-major one on buffer_device().
  at::Tensor buffer_of(const at::Tensor& tensor, bool with_contents) const;
  Copy copy_from_buffer() const;
  void copy_result(const at::Tensor& from, const at::Tensor& to);
  void copy_result(const Flat& from, const Tensors& to);
  void set_part(const at::Tensor& tensor);

  std::optional<TensorAccess> access_;
  at::Device tensor_device_ = at::kCPU;
  at::Tensor part_;
  bool rooted_ = false;
};

}  // namespace hetcomm
