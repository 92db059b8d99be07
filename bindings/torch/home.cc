#include "torch/home.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <mutex>

#include "base/log.h"
#include "base/status.h"
#include "torch/tensors.h"

namespace hetcomm {
namespace {

// Torch itself sends small CPU tensors (of objects, for instance); one of this size is the user's.
constexpr size_t kWorthAWarning = 1 << 20;

// Torch before it had native_handle(): the function that its CUDA or HIP part exports, a member
// without further arguments of a class whose only member is the c10::Stream.
using StreamFunction = Stream (*)(const c10::Stream*);

StreamFunction exported_stream_function() {
  constexpr const char* kLibraries[] = {"libc10_cuda.so", "libc10_hip.so"};
  constexpr const char* kSymbols[] = {"_ZNK3c104cuda10CUDAStream6streamEv",
                                      "_ZNK3c103hip9HIPStream6streamEv"};
  for (const char* name : kLibraries) {
    void* library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    if (!library) continue;
    for (const char* symbol : kSymbols) {
      if (void* found = dlsym(library, symbol)) return reinterpret_cast<StreamFunction>(found);
    }
  }
  throw Error(Code::vendor,
              "expected torch's libc10_cuda.so or libc10_hip.so to tell the native stream, found "
              "neither; install a newer torch");
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

}  // namespace

Stream native(const c10::Stream& stream) { return native_of(stream); }

Home::Home(std::shared_ptr<Device> device, int rank, std::string vendor, std::string host)
    : device_(std::move(device)), rank_(rank), vendor_(std::move(vendor)), host_(std::move(host)) {
  if (!device_ || device_->emulated()) return;
  // Torch calls both CUDA's and HIP's devices so.
  torch_device_ = at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device_->index()));
  streams_ = c10::impl::hasDeviceGuardImpl(at::kCUDA);
  if (streams_) side_stream_ = guard(torch_device_).getStreamFromGlobalPool(torch_device_);
}

c10::Stream Home::current_stream() const { return guard(torch_device_).getStream(torch_device_); }

Home::Access Home::access(const at::Tensor& tensor, const char* operation) const {
  const auto prefix = [&] { return std::string(operation) + ": "; };
  if (tensor.device().is_cpu()) {
    if (!device_ || tensor.numel() == 0 || device_->holds(tensor.const_data_ptr())) {
      return Access::direct;
    }
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
  if (tensor.device().type() != at::kCUDA) {
    throw Error(Code::invalid_argument, prefix() + "expected a CPU tensor" +
                                            (streams_ ? " or one on " + torch_device_.str() : "") +
                                            ", got a " + describe(tensor) +
                                            "; move it with .cpu()");
  }
  if (!streams_) {
    throw Error(Code::invalid_argument,
                prefix() + who() + " has vendor " + vendor_ + ": expected a CPU tensor, got a " +
                    describe(tensor) +
                    "; move it with .cpu(), or make the group with HETCOMM_VENDOR unset, or "
                    "nvidia or amd");
  }
  throw Error(Code::invalid_argument, prefix() + who() + " serves " + torch_device_.str() +
                                          ": expected a tensor there, got a " + describe(tensor) +
                                          "; call torch.cuda.set_device(" +
                                          std::to_string(tensor.device().index()) +
                                          ") before the process group is made, or move the tensor");
}

std::string Home::who() const { return "rank " + std::to_string(rank_) + " on host " + host_; }

}  // namespace hetcomm
