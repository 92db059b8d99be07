#include "torch/device.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

#include "base/deadline.h"
#include "base/log.h"
#include "base/status.h"
#include "device/vendor.h"
#include "torch/tensors.h"

namespace hetcomm {
namespace {

// Copies of larger CPU tensors are logged. Torch itself sends small ones, of objects for instance.
constexpr size_t kLoggedBytes = 1 << 20;
constexpr std::chrono::microseconds kPollInterval{20};
constexpr std::chrono::seconds kCopyBound{60};

// For a torch without native_handle(). Torch's library for a vendor exports a member function of a
// class whose only member is the c10::Stream.
using StreamFunction = Stream (*)(const c10::Stream*);

StreamFunction exported_stream_function() {
  std::string libraries;
  for (const Vendor& vendor : vendors()) {
    const Vendor::Torch& row = vendor.torch;
    libraries += (libraries.empty() ? "" : " or ") + std::string(row.stream_library);
    void* library = dlopen(row.stream_library, RTLD_LAZY | RTLD_NOLOAD);
    if (!library) continue;
    // A torch for ROCm may keep its names for CUDA.
    for (const Vendor& any : vendors()) {
      if (void* found = dlsym(library, any.torch.stream_function)) {
        return reinterpret_cast<StreamFunction>(found);
      }
    }
  }
  throw Error(Code::vendor, "expected torch's " + libraries +
                                " for the native stream, found neither; install a newer torch");
}

template <typename TorchStream>
Stream native_of(const TorchStream& stream) {
  if constexpr (requires { stream.native_handle(); }) {
    return stream.native_handle();
  } else {
    static const StreamFunction function = exported_stream_function();
    return function(&stream);
  }
}

c10::impl::VirtualGuardImpl guard(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

// Whether this is torch's own device type for a vendor, not an extension's.
bool is_vendor_type(at::DeviceType type) {
  const std::string name = c10::DeviceTypeName(type, true);
  return std::any_of(vendors().begin(), vendors().end(),
                     [&](const Vendor& vendor) { return name == vendor.torch.device; });
}

// torch's accelerator under the same index, if torch has tensors in the device's memory. A vendor's
// own device type is never emulated.
std::optional<at::Device> torch_device_of(const Device& device) {
  const std::optional<at::DeviceType> type = at::getAccelerator();
  if (!type || !c10::impl::hasDeviceGuardImpl(*type)) return std::nullopt;
  if (is_vendor_type(*type) && device.emulated()) return std::nullopt;
  const at::Device found(*type, static_cast<at::DeviceIndex>(device.index()));
  if (found.index() >= guard(found).deviceCount()) return std::nullopt;
  if (is_vendor_type(*type)) return found;
  // The extension may be for another vendor's device.
  const at::Tensor sample = at::empty({1}, at::TensorOptions(found));
  return device.holds(sample.const_data_ptr()) ? std::optional(found) : std::nullopt;
}

}  // namespace

Stream native(const c10::Stream& stream) { return native_of(stream); }

TorchDevice::TorchDevice(std::shared_ptr<Device> device, int rank, std::string vendor,
                         std::string host)
    : device_(std::move(device)), rank_(rank), vendor_(std::move(vendor)), host_(std::move(host)) {
  if (!device_) return;
  const std::optional<at::Device> found = torch_device_of(*device_);
  if (!found) return;
  torch_device_ = *found;
  has_streams_ = true;
  side_stream_ = guard(torch_device_).getStreamFromGlobalPool(torch_device_);
  copy_stream_ = device_->make_stream();
}

TorchDevice::~TorchDevice() {
  if (copy_stream_ != nullptr) device_->destroy(copy_stream_);
}

void TorchDevice::copy_to_host(const at::Tensor& to, const at::Tensor& from) const {
  Status status = device_->copy(to.data_ptr(), from.const_data_ptr(), from.nbytes(), copy_stream_);
  const Event event = device_->make_event();
  if (status.ok()) status = device_->record(event, copy_stream_);
  const Deadline deadline(kCopyBound);
  while (status.ok() && !device_->passed(event, status)) {
    std::this_thread::sleep_for(kPollInterval);
    if (deadline.passed()) {
      // The event is not destroyed: the device may still use it.
      throw Error(Code::timeout, "a copy from " + device_->describe() +
                                     " to a CPU tensor is not over after 60 s; the device hangs: "
                                     "end this process");
    }
  }
  device_->destroy_event(event);
  if (!status.ok()) throw Error(status);
}

c10::Stream TorchDevice::current_stream() const {
  return guard(torch_device_).getStream(torch_device_);
}

TensorAccess TorchDevice::access(const at::Tensor& tensor, const char* operation) const {
  const auto rank_and_host = [&] {
    return std::string(operation) + ": rank " + std::to_string(rank_) + " on host " + host_;
  };
  if (tensor.device().is_cpu()) {
    if (!device_ || tensor.numel() == 0) return TensorAccess::direct;
    // An emulated device holds all memory. If torch has no tensors there, CPU tensors are direct.
    const bool held = device_->holds(tensor.const_data_ptr());
    if (held && !(has_streams_ && device_->emulated())) return TensorAccess::direct;
    if (!has_streams_) {
      throw_invalid(rank_and_host() + " serves " + device_->describe() +
                        ", but its torch has no tensors there",
                    "torch built for that device", "a " + describe(tensor),
                    "install such a torch, or set HETCOMM_VENDOR=cpu");
    }
    static std::once_flag logged;
    const auto warn = [&] {
      log(LogLevel::warning,
          std::string(operation) + ": a CPU tensor is copied to " + device_->describe() +
              " and back, which takes time; move tensors there, or set HETCOMM_VENDOR=cpu for a "
              "group of CPU tensors",
          rank_);
    };
    if (tensor.nbytes() >= kLoggedBytes) std::call_once(logged, warn);
    return TensorAccess::copied;
  }
  if (has_streams_ && tensor.device() == torch_device_) return TensorAccess::streamed;
  const at::DeviceType type = tensor.device().type();
  const std::string got = "a " + describe(tensor);
  if (has_streams_ ? type != torch_device_.type() : !is_vendor_type(type)) {
    throw_invalid(operation,
                  "a CPU tensor" + (has_streams_ ? " or one on " + torch_device_.str() : ""), got,
                  "move it with .cpu()");
  }
  if (!has_streams_) {
    throw_invalid(rank_and_host() + " has vendor " + vendor_, "a CPU tensor", got,
                  "move it with .cpu(), or make the group with HETCOMM_VENDOR unset, or " +
                      vendor_names(" or "));
  }
  throw_invalid(rank_and_host() + " serves " + torch_device_.str(), "a tensor there", got,
                "choose " + tensor.device().str() +
                    " before the process group is made (with CUDA torch.cuda.set_device()), or "
                    "move the tensor");
}

}  // namespace hetcomm
