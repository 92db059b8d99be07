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

// Torch itself sends small CPU tensors (of objects, for instance); one of this size is the user's.
constexpr size_t kWorthAWarning = 1 << 20;
// Between two looks at a copy, which nothing tells the end of.
constexpr std::chrono::microseconds kLook{20};
constexpr std::chrono::seconds kCopyBound{60};

// Torch before it had native_handle(): the function that its part for a vendor exports, a member
// without further arguments of a class whose only member is the c10::Stream.
using StreamFunction = Stream (*)(const c10::Stream*);

StreamFunction exported_stream_function() {
  std::string libraries;
  for (const Vendor& vendor : vendors()) {
    const Vendor::Torch& row = vendor.torch;
    libraries += (libraries.empty() ? "" : " or ") + std::string(row.stream_library);
    void* library = dlopen(row.stream_library, RTLD_LAZY | RTLD_NOLOAD);
    if (!library) continue;
    // torch for ROCm may keep the names that it has for CUDA.
    for (const Vendor& any : vendors()) {
      if (void* found = dlsym(library, any.torch.stream_function)) {
        return reinterpret_cast<StreamFunction>(found);
      }
    }
  }
  throw Error(Code::vendor, "expected torch's " + libraries +
                                " to tell the native stream, found neither; install a newer torch");
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

// Whether torch itself, and no extension, calls some vendor's devices so.
bool of_a_vendor(at::DeviceType type) {
  const std::string name = c10::DeviceTypeName(type, true);
  return std::any_of(vendors().begin(), vendors().end(),
                     [&](const Vendor& vendor) { return name == vendor.torch.device; });
}

// Where torch has tensors in the device's memory: its accelerator, under the same index. A vendor's
// own device type is never emulated.
std::optional<at::Device> torch_device_of(const Device& device) {
  const std::optional<at::DeviceType> type = at::getAccelerator();
  if (!type || !c10::impl::hasDeviceGuardImpl(*type)) return std::nullopt;
  if (of_a_vendor(*type) && device.emulated()) return std::nullopt;
  const at::Device found(*type, static_cast<at::DeviceIndex>(device.index()));
  if (found.index() >= guard(found).deviceCount()) return std::nullopt;
  if (of_a_vendor(*type)) return found;
  const at::Tensor there = at::empty({1}, at::TensorOptions(found));  // may be another's device
  return device.holds(there.const_data_ptr()) ? std::optional(found) : std::nullopt;
}

}  // namespace

Stream native(const c10::Stream& stream) { return native_of(stream); }

Home::Home(std::shared_ptr<Device> device, int rank, std::string vendor, std::string host)
    : device_(std::move(device)), rank_(rank), vendor_(std::move(vendor)), host_(std::move(host)) {
  if (!device_) return;
  const std::optional<at::Device> found = torch_device_of(*device_);
  if (!found) return;
  torch_device_ = *found;
  streams_ = true;
  side_stream_ = guard(torch_device_).getStreamFromGlobalPool(torch_device_);
  outward_ = device_->make_stream();
}

Home::~Home() {
  if (outward_ != nullptr) device_->destroy(outward_);
}

void Home::copy_to_host(const at::Tensor& to, const at::Tensor& from) const {
  Status status = device_->copy(to.data_ptr(), from.const_data_ptr(), from.nbytes(), outward_);
  const Event event = device_->make_event();
  if (status.ok()) status = device_->record(event, outward_);
  const Deadline deadline(kCopyBound);
  while (status.ok() && !device_->passed(event, status)) {
    std::this_thread::sleep_for(kLook);
    if (deadline.passed()) {
      // The event and the memory stay with the device.
      throw Error(Code::timeout, "a copy from " + device_->describe() +
                                     " to a CPU tensor is not over after 60 s; the device hangs: "
                                     "end this process");
    }
  }
  device_->destroy_event(event);
  if (!status.ok()) throw Error(status);
}

c10::Stream Home::current_stream() const { return guard(torch_device_).getStream(torch_device_); }

Home::Access Home::access(const at::Tensor& tensor, const char* operation) const {
  const auto prefix = [&] { return std::string(operation) + ": "; };
  if (tensor.device().is_cpu()) {
    if (!device_ || tensor.numel() == 0) return Access::direct;
    // To an emulated device all memory is its own, for a torch that has no tensors there.
    const bool there = device_->holds(tensor.const_data_ptr());
    if (there && !(streams_ && device_->emulated())) return Access::direct;
    if (!streams_) {
      throw Error(Code::invalid_argument,
                  prefix() + who() + " serves " + device_->describe() + ", but its torch " +
                      "has no tensors there: expected torch built for that device, got a " +
                      describe(tensor) + "; install such a torch, or set HETCOMM_VENDOR=cpu");
    }
    static std::once_flag told;
    auto tell = [&] {
      log(LogLevel::warning,
          prefix() + "a CPU tensor is copied to " + device_->describe() +
              " and back, which takes time; move tensors there, or set HETCOMM_VENDOR=cpu for a "
              "group of CPU tensors",
          rank_);
    };
    if (tensor.nbytes() >= kWorthAWarning) std::call_once(told, tell);
    return Access::copied;
  }
  if (streams_ && tensor.device() == torch_device_) return Access::streamed;
  const at::DeviceType type = tensor.device().type();
  if (streams_ ? type != torch_device_.type() : !of_a_vendor(type)) {
    throw Error(Code::invalid_argument, prefix() + "expected a CPU tensor" +
                                            (streams_ ? " or one on " + torch_device_.str() : "") +
                                            ", got a " + describe(tensor) +
                                            "; move it with .cpu()");
  }
  if (!streams_) {
    throw Error(Code::invalid_argument,
                prefix() + who() + " has vendor " + vendor_ + ": expected a CPU tensor, got a " +
                    describe(tensor) +
                    "; move it with .cpu(), or make the group with HETCOMM_VENDOR unset, or " +
                    vendor_names(" or "));
  }
  throw Error(Code::invalid_argument, prefix() + who() + " serves " + torch_device_.str() +
                                          ": expected a tensor there, got a " + describe(tensor) +
                                          "; choose " + tensor.device().str() +
                                          " before the process group is made (with CUDA "
                                          "torch.cuda.set_device()), or move the tensor");
}

std::string Home::who() const { return "rank " + std::to_string(rank_) + " on host " + host_; }

}  // namespace hetcomm
