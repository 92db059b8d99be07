#include "torch/call.h"

#include <ATen/record_function.h>

#include <mutex>
#include <set>
#include <utility>

#include "torch/tensors.h"

namespace hetcomm {
namespace {

constexpr std::pair<c10d::ReduceOp::RedOpType, ReduceOp> kTorchReduceOps[] = {
    {c10d::ReduceOp::SUM, ReduceOp::sum},
    {c10d::ReduceOp::AVG, ReduceOp::average},
    {c10d::ReduceOp::PREMUL_SUM, ReduceOp::premul_sum},
    {c10d::ReduceOp::PRODUCT, ReduceOp::product},
    {c10d::ReduceOp::MIN, ReduceOp::min},
    {c10d::ReduceOp::MAX, ReduceOp::max},
    {c10d::ReduceOp::BAND, ReduceOp::band},
    {c10d::ReduceOp::BOR, ReduceOp::bor},
    {c10d::ReduceOp::BXOR, ReduceOp::bxor},
};

// Reads a factor in a tensor at once, because all ranks compare factors before they begin.
double factor(const c10d::ReduceOp& op, const char* operation) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return 1;
  const auto* given = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  if (given == nullptr) {
    throw_invalid(operation, "PREMUL_SUM with a factor", "one without",
                  "make it with torch.distributed._make_nccl_premul_sum(factor)");
  }
  if (!given->tensor_factor.defined()) return given->double_factor;
  check_tensor(given->tensor_factor, operation);
  if (given->tensor_factor.is_complex()) {
    throw_invalid(operation, "a real factor of PREMUL_SUM", "a " + describe(given->tensor_factor),
                  "multiply the tensors before a SUM");
  }
  return given->tensor_factor.item<double>();
}

}  // namespace

ReduceOp reduce_op(const c10d::ReduceOp& op, const char* operation) {
  for (const auto& [of_torch, own] : kTorchReduceOps) {
    if (op.op_ == of_torch) return own;
  }
  throw_invalid(operation, "SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR or PREMUL_SUM",
                "operation " + std::to_string(static_cast<int>(op.op_)), "choose one of these");
}

const char* Call::title() const {
  if (!at::hasCallbacks()) return nullptr;
  static std::mutex mutex;
  static auto& titles = *new std::set<std::string>;  // torch keeps the pointer
  std::lock_guard lock(mutex);
  return titles.insert("hetcomm:" + std::string(operation)).first->c_str();
}

// A sum of complex numbers is a sum of twice as many real numbers. So is a multiple of the sum.
void Call::reduce_by(const c10d::ReduceOp& op) {
  spec.op = reduce_op(op, operation);
  spec.factor = factor(op, operation);
  if (!part_.is_complex()) return;
  if (combining(spec.op) != ReduceOp::sum) {
    throw_invalid(operation, "SUM, AVG or PREMUL_SUM of complex numbers",
                  std::string(name(spec.op)) + " of a " + describe(part_),
                  "reduce torch.view_as_real() of it, if that is what you mean");
  }
  spec.dtype = dtype_of(at::real(part_));
  spec.count *= 2;
}

void Call::rooted(int64_t root) {
  if (root < 0 || root >= size) {
    throw_invalid(operation, "a root from 0 to " + std::to_string(size - 1), std::to_string(root),
                  "roots are ranks of the group");
  }
  spec.root = static_cast<int>(root);
  rooted_ = true;
}

void Call::check(const at::Tensor& tensor) {
  check_layout(tensor, operation);
  if (access_ && tensor.device() != tensor_device_) {
    throw_invalid(operation, "all tensors of a call on one device",
                  "one on " + tensor_device_.str() + " and one on " + tensor.device().str(),
                  "move them to " + tensor_device_.str());
  }
  const TensorAccess access = device->access(tensor, operation);
  check_storage(tensor, operation);
  // An empty tensor after the first does not change the access of the call.
  if (access_ && tensor.numel() == 0) return;
  access_ = access;
  tensor_device_ = tensor.device();
}

void Call::check_list(const Tensors& list) {
  for (const at::Tensor& tensor : list) check(tensor);
  hetcomm::check_list(list, part_, size, operation);
}

at::Device Call::buffer_device() const {
  return access() == TensorAccess::copied ? device->torch_device() : tensor_device_;
}

at::Tensor Call::buffer_of(const at::Tensor& tensor, bool with_contents) const {
  if (access() != TensorAccess::copied && is_row_major(tensor)) return tensor;
  if (with_contents) return row_major_copy(tensor, buffer_device());
  return at::empty(tensor.sizes(), tensor.options().device(buffer_device()));
}

Copy Call::copy_from_buffer() const {
  if (access() != TensorAccess::copied) return copy_elements;
  return [device = device](const at::Tensor& to, const at::Tensor& from) {
    if (is_row_major(to)) return device->copy_to_host(to, from);
    const at::Tensor on_host = at::empty(to.sizes(), to.options());
    device->copy_to_host(on_host, from);
    copy_elements(to, on_host);
  };
}

void Call::copy_result(const at::Tensor& from, const at::Tensor& to) {
  if (!from.is_same(to)) finish = [copy = copy_from_buffer(), from, to] { copy(to, from); };
}

void Call::copy_result(const Flat& from, const Tensors& to) {
  if (!from.direct) finish = [copy = copy_from_buffer(), from, to] { copy_out(from, to, copy); };
}

void Call::in_place(const Tensors& tensors) {
  const at::Tensor& tensor = only(tensors, operation);
  check(tensor);
  check_output(tensor, operation);
  const at::Tensor buffer = buffer_of(tensor, true);
  set_part(tensor);
  input = output = buffer.data_ptr();
  keep = {buffer};
  inputs = outputs = {tensor};
  copy_result(buffer, tensor);
  spec.in_place = true;
}

void Call::in_place_coalesced(const Tensors& tensors) {
  for (const at::Tensor& tensor : tensors) check(tensor);
  check_outputs(tensors, operation);
  const Flat flat = flatten(tensors, buffer_device());
  copy_in(flat, tensors);
  set_part(tensors[0]);
  spec.count = 0;
  for (const at::Tensor& tensor : tensors) spec.count += tensor.numel();
  input = output = flat.tensor.data_ptr();
  keep = tensors;
  keep.push_back(flat.tensor);
  inputs = outputs = tensors;
  copy_result(flat, tensors);
  spec.in_place = true;
}

void Call::set_outputs(Tensors tensors, std::function<void()> copy) {
  check_outputs(tensors, operation);
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
  keep.push_back(buffer_of(tensor, true));
  input = keep.back().data_ptr();
}

void Call::write(const at::Tensor& tensor) {
  check(tensor);
  check_output(tensor, operation);
  keep.push_back(buffer_of(tensor, false));
  output = keep.back().data_ptr();
  outputs = {tensor};
  copy_result(keep.back(), tensor);
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
  check_size(tensor, part_.numel() * size, operation, "input");
}

void Call::write_all(const at::Tensor& tensor) {
  write(tensor);
  check_same_dtype(part_, tensor, operation);
  check_size(tensor, part_.numel() * size, operation, "output");
}

void Call::read_list(const std::vector<Tensors>& lists) {
  if (const Tensors* list = only_list(lists, "inputs")) {
    check_list(*list);
    const Flat flat = flatten(*list, buffer_device());
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
  check_outputs(list, operation);
  const Flat flat = flatten(list, buffer_device());
  output = flat.tensor.data_ptr();
  keep.push_back(flat.tensor);
  outputs = list;
  copy_result(flat, list);
}

const Call::Tensors* Call::only_list(const std::vector<Tensors>& lists, const char* what) const {
  const bool has_list = !rooted_ || rank == spec.root;
  if (has_list && lists.size() == 1) return &lists[0];
  if (!has_list && (lists.empty() || (lists.size() == 1 && lists[0].empty()))) return nullptr;
  const std::string expected = (has_list ? "one list of " : "no ") + std::string(what);
  const char* const where = !rooted_ ? "" : has_list ? " on the root" : " except on the root";
  throw_invalid(operation, expected + where, std::to_string(lists.size()) + " lists",
                rooted_ ? "pass a list on the root alone" : "call it once for each list");
}

}  // namespace hetcomm
