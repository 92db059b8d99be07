#include "torch/call.h"

#include <ATen/record_function.h>

#include <mutex>
#include <set>

#include "torch/tensors.h"

namespace hetcomm {
namespace {

using PreMulSum = c10d::NCCLPreMulSumSupplement;

// A factor in a tensor is read here and now: all ranks compare it before they begin.
double factor(const c10d::ReduceOp& op, const char* operation) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return 1;
  const auto* given = dynamic_cast<const PreMulSum*>(op.supplement_.get());
  if (given == nullptr) {
    throw Error(Code::invalid_argument, std::string(operation) +
                                            ": expected PREMUL_SUM with a factor; make it with "
                                            "torch.distributed._make_nccl_premul_sum(factor)");
  }
  if (!given->tensor_factor.defined()) return given->double_factor;
  if (given->tensor_factor.is_complex()) {
    throw Error(Code::invalid_argument,
                std::string(operation) + ": expected a real factor of PREMUL_SUM, got a " +
                    describe(given->tensor_factor) + "; multiply the tensors before a SUM");
  }
  return given->tensor_factor.item<double>();
}

}  // namespace

ReduceOp reduce_op(const c10d::ReduceOp& op, const char* operation) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::sum;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::product;
    case c10d::ReduceOp::MIN:
      return ReduceOp::min;
    case c10d::ReduceOp::MAX:
      return ReduceOp::max;
    case c10d::ReduceOp::BAND:
      return ReduceOp::band;
    case c10d::ReduceOp::BOR:
      return ReduceOp::bor;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::bxor;
    case c10d::ReduceOp::AVG:
      return ReduceOp::average;
    case c10d::ReduceOp::PREMUL_SUM:
      return ReduceOp::premul_sum;
    default:
      break;
  }
  throw Error(Code::invalid_argument,
              std::string(operation) +
                  ": expected SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR or PREMUL_SUM, got "
                  "operation " +
                  std::to_string(static_cast<int>(op.op_)));
}

const char* Call::title() const {
  if (!at::hasCallbacks()) return nullptr;
  static std::mutex mutex;
  static auto& titles = *new std::set<std::string>;  // torch keeps the pointer
  std::lock_guard lock(mutex);
  return titles.insert("hetcomm:" + std::string(operation)).first->c_str();
}

// The sum of complex numbers, and what is a multiple of it, is that of twice as many real ones.
void Call::reduce_by(const c10d::ReduceOp& op) {
  spec.op = reduce_op(op, operation);
  spec.factor = factor(op, operation);
  if (!part_.is_complex()) return;
  if (combining(spec.op) != ReduceOp::sum) {
    throw Error(Code::invalid_argument,
                std::string(operation) +
                    ": expected SUM, AVG or PREMUL_SUM of complex numbers, got " + name(spec.op) +
                    " of a " + describe(part_) +
                    "; reduce torch.view_as_real() of it, if that is what you mean");
  }
  spec.dtype = dtype_of(at::real(part_));
  spec.count *= 2;
}

void Call::rooted(int64_t root) {
  if (root < 0 || root >= size) {
    throw Error(Code::invalid_argument, std::string(operation) + ": expected a root from 0 to " +
                                            std::to_string(size - 1) + ", got " +
                                            std::to_string(root));
  }
  spec.root = static_cast<int>(root);
  rooted_ = true;
}

void Call::check(const at::Tensor& tensor) {
  check_tensor(tensor, operation);
  if (access_ && tensor.device() != device_) {
    throw Error(Code::invalid_argument,
                std::string(operation) +
                    ": expected all tensors of a call on one device, got one on " + device_.str() +
                    " and one on " + tensor.device().str() + "; move them to " + device_.str());
  }
  const Home::Access access = home->access(tensor, operation);
  // An empty tensor says nothing about the others.
  if (access_ && tensor.numel() == 0) return;
  access_ = access;
  device_ = tensor.device();
}

void Call::check_list(const Tensors& list) {
  hetcomm::check_list(list, part_, size, operation);
  for (const at::Tensor& tensor : list) check(tensor);
}

at::Device Call::memory() const {
  return access() == Home::Access::copied ? home->device() : device_;
}

at::Tensor Call::inside(const at::Tensor& tensor, bool with_contents) const {
  if (access() != Home::Access::copied && is_row_major(tensor)) return tensor;
  if (with_contents) return row_major_copy(tensor, memory());
  return at::empty(tensor.sizes(), tensor.options().device(memory()));
}

Copy Call::returning() const {
  if (access() != Home::Access::copied) return copy_elements;
  return [home = home](const at::Tensor& to, const at::Tensor& from) {
    if (is_row_major(to)) return home->copy_to_host(to, from);
    const at::Tensor here = at::empty(to.sizes(), to.options());
    home->copy_to_host(here, from);
    copy_elements(to, here);
  };
}

void Call::give_back(const at::Tensor& from, const at::Tensor& to) {
  if (!from.is_same(to)) finish = [copy = returning(), from, to] { copy(to, from); };
}

void Call::in_place(const Tensors& tensors) {
  const at::Tensor& tensor = only(tensors, operation);
  check(tensor);
  check_output(tensor, operation);
  const at::Tensor used = inside(tensor, true);
  set_part(tensor);
  input = output = used.data_ptr();
  keep = {used};
  inputs = outputs = {tensor};
  give_back(used, tensor);
  spec.in_place = true;
}

void Call::in_place_together(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) {
    check(tensor);
    check_output(tensor, operation);
  }
  const Flat flat = flatten(tensors, memory());
  copy_in(flat, tensors);
  set_part(tensors[0]);
  spec.count = 0;
  for (const at::Tensor& tensor : tensors) spec.count += tensor.numel();
  input = output = flat.tensor.data_ptr();
  keep = tensors;
  keep.push_back(flat.tensor);
  inputs = outputs = tensors;
  give_back(flat, tensors);
  spec.in_place = true;
}

void Call::results(Tensors tensors, std::function<void()> copy) {
  for (const at::Tensor& tensor : tensors) check_output(tensor, operation);
  finish = [before = std::move(finish), copy = std::move(copy)] {
    if (before) before();
    copy();
  };
  keep.insert(keep.end(), tensors.begin(), tensors.end());
  outputs = std::move(tensors);
}

void Call::read(const at::Tensor& tensor) {
  check(tensor);
  inputs = {tensor};
  keep.push_back(inside(tensor, true));
  input = keep.back().data_ptr();
}

void Call::write(const at::Tensor& tensor) {
  check(tensor);
  check_output(tensor, operation);
  keep.push_back(inside(tensor, false));
  output = keep.back().data_ptr();
  outputs = {tensor};
  give_back(keep.back(), tensor);
}

void Call::set_part(const at::Tensor& tensor) {
  part_ = tensor;
  spec.dtype = dtype_of(tensor);
  spec.count = tensor.numel();
}

void Call::read_part(const at::Tensor& tensor) {
  read(tensor);
  set_part(tensor);
}

void Call::write_part(const at::Tensor& tensor) {
  write(tensor);
  set_part(tensor);
}

void Call::read_all(const at::Tensor& tensor) {
  read(tensor);
  check_same_dtype(tensor, part_, operation);
  check_size(tensor, part_.numel() * size, std::string(operation) + ": input");
}

void Call::write_all(const at::Tensor& tensor) {
  write(tensor);
  check_same_dtype(part_, tensor, operation);
  check_size(tensor, part_.numel() * size, std::string(operation) + ": output");
}

void Call::read_list(const std::vector<Tensors>& lists) {
  if (const Tensors* list = only_list(lists, "inputs")) {
    check_list(*list);
    const Flat flat = flatten(*list, memory());
    copy_in(flat, *list);
    input = flat.tensor.data_ptr();
    keep.push_back(flat.tensor);
    keep.insert(keep.end(), list->begin(), list->end());
    inputs = *list;
  }
}

void Call::write_list(const std::vector<Tensors>& lists) {
  if (const Tensors* list = only_list(lists, "outputs")) {
    check_list(*list);
    write_flat(*list);
  }
}

void Call::write_flat(const Tensors& list) {
  for (const at::Tensor& tensor : list) check_output(tensor, operation);
  const Flat flat = flatten(list, memory());
  output = flat.tensor.data_ptr();
  keep.push_back(flat.tensor);
  outputs = list;
  give_back(flat, list);
}

void Call::give_back(const Flat& flat, const Tensors& list) {
  if (!flat.direct) finish = [flat, list, copy = returning()] { copy_out(flat, list, copy); };
}

const Call::Tensors* Call::only_list(const std::vector<Tensors>& lists, const char* what) const {
  const std::string prefix = std::string(operation) + ": expected ";
  if (!rooted_ || rank == spec.root) {
    if (lists.size() == 1) return &lists[0];
    throw Error(Code::invalid_argument, prefix + "one list of " + what +
                                            (rooted_ ? " on the root, got " : ", got ") +
                                            std::to_string(lists.size()));
  }
  if (lists.empty() || (lists.size() == 1 && lists[0].empty())) return nullptr;
  throw Error(Code::invalid_argument, prefix + "no " + what + " except on the root, got " +
                                          std::to_string(lists.size()) + " lists");
}

}  // namespace hetcomm
