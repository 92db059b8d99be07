// torch's operators on the device: its CPU code, run in the order of the stream.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "allocator.h"
#include "runtime.h"

namespace emulated_device {

namespace {

using at::Tensor;
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::Device device_of(std::optional<at::Device> device) {
  c10::Device chosen = device.value_or(c10::Device(at::kPrivateUse1));
  return chosen.has_index() ? chosen : current_device();
}

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device> device, std::optional<bool>,
             std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device_of(device));
  return at::detail::empty_generic(size, c10::GetAllocator(at::kPrivateUse1), kKeys,
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                     std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device_of(device));
  return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(at::kPrivateUse1), kKeys,
                                           c10::dtype_or_default(dtype));
}

// The tensor's memory as the processor sees it; keeps nothing alive, like a kernel's arguments.
Tensor on_host(const Tensor& tensor) {
  if (tensor.device().is_cpu()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       tensor.options().device(at::kCPU).requires_grad(false));
}

void synchronize() {
  check(runtime().StreamSynchronize(native(current_stream())), "StreamSynchronize");
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  const c10::DeviceGuard guard(to.device().is_cpu() ? from.device() : to.device());
  enqueue([source = on_host(from), target = on_host(to)] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    target.copy_(source);
  });
  const bool with_host = from.device().is_cpu() || to.device().is_cpu();
  if (with_host && !non_blocking) synchronize();
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  at::native::resize_(to, from.sizes());
  return copy_from(from, to, false);
}

void record_stream(Tensor& tensor, c10::Stream stream) {
  record_on_stream(tensor.storage().data(), stream);
}

// The index of the tensor that the call changes in place, as "mul_" does, or "mul.out" with its
// first argument as result. All other arguments must be tensors of the device or numbers, so that
// the call can run later without the host. -1: no such tensor.
int changed_in_place(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments) {
  const auto& schema = op.schema();
  int changed = -1;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].isTensorList() || arguments[i].isOptionalTensorList()) return -1;
    if (!arguments[i].isTensor() || !arguments[i].toTensor().defined()) continue;
    const Tensor& tensor = arguments[i].toTensor();
    if (tensor.device().is_cpu() && tensor.dim() > 0) return -1;
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    if (changed >= 0 || !tensor.is_same(arguments[0].toTensor())) return -1;
    changed = static_cast<int>(i);
  }
  return schema.returns().size() == 1 ? changed : -1;
}

void by_processor(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const int index = changed_in_place(op, torch::jit::last(*stack, count));
  if (index < 0) return at::native::cpu_fallback(op, stack);
  torch::jit::Stack arguments = torch::jit::pop(*stack, count);
  const Tensor changed = arguments[static_cast<size_t>(index)].toTensor();
  for (c10::IValue& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().defined())
      argument = on_host(argument.toTensor());
  }
  const c10::DeviceGuard guard(changed.device());
  enqueue([op, arguments] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    torch::jit::Stack own = arguments;
    op.callBoxed(&own);
  });
  torch::jit::push(*stack, changed);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&by_processor>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("record_stream", &record_stream);
  library.impl("resize_", &at::native::resize_);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  library.impl("set_.source_Tensor", &at::native::set_tensor_);
}

}  // namespace emulated_device
