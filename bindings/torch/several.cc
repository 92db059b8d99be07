// Calls with several tensors of one rank, as c10d allows for ranks with several devices.

#include "torch/call.h"
#include "torch/tensors.h"

namespace hetcomm {
namespace {

at::Tensor& reduce_into(at::Tensor& target, const at::Tensor& other, ReduceOp op) {
  const at::NoGradGuard no_grad;
  return op == ReduceOp::product ? target.mul_(other)
         : op == ReduceOp::min   ? at::minimum_out(target, target, other)
         : op == ReduceOp::max   ? at::maximum_out(target, target, other)
         : op == ReduceOp::band  ? target.bitwise_and_(other)
         : op == ReduceOp::bor   ? target.bitwise_or_(other)
         : op == ReduceOp::bxor  ? target.bitwise_xor_(other)
                                 : target.add_(other);
}

}  // namespace

void Call::check_alike(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    check(tensor);
    if (tensor.scalar_type() == tensors[0].scalar_type() && tensor.sizes() == tensors[0].sizes()) {
      continue;
    }
    throw_invalid(operation, "tensors of one dtype and shape",
                  "a " + describe(tensors[0]) + " and a " + describe(tensor),
                  "call it once for each");
  }
}

void Call::in_place_reduced_locally(const Tensors& tensors, const c10d::ReduceOp& op) {
  if (tensors.size() < 2) return in_place(tensors);
  check_alike(tensors);
  at::Tensor all = row_major_copy(tensors[0], tensors[0].device());
  const ReduceOp by = combining(reduce_op(op, operation));
  for (size_t i = 1; i < tensors.size(); ++i) reduce_into(all, tensors[i], by);
  in_place({all});
  inputs = tensors;
  set_outputs(tensors, [=] {
    for (const at::Tensor& tensor : tensors) copy_elements(tensor, all);
  });
}

void Call::in_place_from_one(const Tensors& tensors, int64_t index) {
  const auto count = static_cast<int64_t>(tensors.size());
  if (count > 0 && (index < 0 || index >= count)) {
    throw_invalid(operation, "a root tensor from 0 to " + std::to_string(count - 1),
                  std::to_string(index), "pass the index of a tensor of this call");
  }
  if (count < 2) return in_place(tensors);
  check_alike(tensors);
  const at::Tensor one = tensors[static_cast<size_t>(index)];
  in_place({one});
  inputs = tensors;
  set_outputs(tensors, [=] {
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.is_same(one)) copy_elements(tensor, one);
    }
  });
}

void Call::gather_several(const Tensors& parts, const std::vector<Tensors>& lists) {
  check_alike(parts);
  if (lists.size() != parts.size()) {
    throw_invalid(operation,
                  "a list of outputs for each of " + std::to_string(parts.size()) + " inputs",
                  std::to_string(lists.size()), "pass as many lists as inputs");
  }
  const auto of_all = size * static_cast<int64_t>(parts.size());
  Tensors every;
  for (const Tensors& list : lists) {
    for (const at::Tensor& tensor : list) check(tensor);
    hetcomm::check_list(list, parts[0], of_all, operation);
    every.insert(every.end(), list.begin(), list.end());
  }
  const at::Tensor part = joined(parts);
  const at::Tensor whole = at::empty({part.numel() * size}, part.options());
  read_part(part);
  write_all(whole);
  inputs = parts;
  set_outputs(every, [=] {
    for (const Tensors& list : lists) copy_out({whole}, list, copy_elements);
  });
}

}  // namespace hetcomm
