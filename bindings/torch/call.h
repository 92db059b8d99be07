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

// Throws Error(invalid_argument) for one that hetcomm has not.
ReduceOp reduce_op(const c10d::ReduceOp& op, const char* operation);

// One operation as torch asks for it, on its way to the communicator: checks tensors, lays lists
// out as one buffer, and keeps what must live until the end. Belongs to one thread. All functions
// throw Error(invalid_argument).
struct Call {
  using Tensors = std::vector<at::Tensor>;

  Call(const char* operation, c10d::OpType type, Collective collective,
       std::shared_ptr<const Home> home, int rank, int size)
      : operation(operation), type(type), home(std::move(home)), rank(rank), size(size) {
    spec.collective = collective;
  }

  const char* operation;  // torch's name, for messages
  // "hetcomm:all_reduce" and the tensors whose shapes are shown, for torch's profiles; null if
  // nobody profiles.
  const char* title() const;
  const Tensors& shown() const { return inputs.empty() ? outputs : inputs; }
  c10d::OpType type;
  std::shared_ptr<const Home> home;
  int rank, size;
  Spec spec;
  const void* input = nullptr;
  void* output = nullptr;
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  bool will_wait = false;
  Tensors keep, inputs, outputs;  // what it uses, was given, and gives
  std::function<void()> finish;
  std::shared_ptr<Timing> timing;  // null unless somebody wants to know

  // How the tensors take part; that of all, fixed by the first.
  Home::Access access() const { return access_.value_or(Home::Access::direct); }
  void check(const at::Tensor& tensor);

  void reduce_by(const c10d::ReduceOp& op);  // after what fixes dtype and count
  void rooted(int64_t root);

  // The only tensor, replaced by the result.
  void in_place(const Tensors& tensors);
  // Several tensors of one dtype and shape, as c10d allows for ranks with several devices:
  // combined by the operation before it, all replaced by the result;
  void in_place_combined(const Tensors& tensors, const c10d::ReduceOp& op);
  // the one of this index takes part, all are replaced by the result;
  void in_place_as_one(const Tensors& tensors, int64_t index);
  // every rank's inputs, in the order of ranks, in each of the lists of outputs.
  void gather_several(const Tensors& parts, const std::vector<Tensors>& lists);
  // Tensors of one dtype as if they were one, replaced by the result.
  void in_place_together(const Tensors& tensors);
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
  // The result is rather these, which `copy` fills from what was written.
  void results(Tensors tensors, std::function<void()> copy);

 private:
  const Tensors* only_list(const std::vector<Tensors>& lists, const char* what) const;

  void check_list(const Tensors& list);
  void check_alike(const Tensors& tensors);
  at::Device memory() const;  // that the operation works on
  // What stands for the tensor there, row-major.
  at::Tensor inside(const at::Tensor& tensor, bool with_contents) const;
  Copy returning() const;  // from there to where the caller wants it
  void give_back(const at::Tensor& from, const at::Tensor& to);
  void give_back(const Flat& from, const Tensors& to);
  void set_part(const at::Tensor& tensor);

  std::optional<Home::Access> access_;
  at::Device device_ = at::kCPU;
  at::Tensor part_;
  bool rooted_ = false;
};

}  // namespace hetcomm
