#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "device/coder_launch.h"
#include "device/device.h"

namespace hetcomm {

// Arithmetic on the memory of one device, by kernels that are compiled at first use and kept. One
// object per device, kept until the process ends. Thread-safe. Each call enqueues work on the
// caller's stream and does not wait. The memory must stay until the stream has passed. Arguments,
// alignment and results are those of kernel_launch.h and coder_launch.h. The first use of a kernel
// takes a fraction of a second, and loading may wait for the device. So call with a count of 0
// during set-up, which only compiles and loads. The memory of an emulated device is host memory:
// its streams run the host's functions, which give the same bits.
class DeviceKernels {
 public:
  // Null, with the reason, if this device cannot run hetcomm's kernels: there is no run-time
  // compiler, the compiler does not know the device, or HETCOMM_KERNELS=0. Reduce and encode in
  // host memory then.
  static const DeviceKernels* of(Device& device, std::string& why_not);

  // "NVRTC 13.0 (path), sm_90"
  const std::string& describe() const { return description_; }
  // "sm_90"; empty for vendors whose compiler asks the device itself.
  const std::string& architecture() const { return architecture_; }

  Status reduce(Dtype dtype, ReduceOp op, void* target, const void* const* sources,
                int source_count, size_t count, Stream stream) const;
  Status scale(Dtype dtype, Scale scale, void* target, const void* source, size_t count,
               Stream stream) const;
  Status cast(Dtype to, void* target, Dtype from, const void* source, size_t count,
              Stream stream) const;
  // Encoded memory begins with its header. `on_host` does the same on host memory.
  using OnHost = std::function<void()>;
  Status encode(Dtype dtype, const DeviceFormat& format, void* encoded, const void* source,
                float* residual, size_t count, Stream stream, OnHost on_host) const;
  Status decode(Dtype dtype, const DeviceFormat& format, void* target, const void* first,
                const void* const* encoded, int source_count, size_t count, Stream stream,
                OnHost on_host) const;

 private:
  struct Driver;
  using Function = void*;

  explicit DeviceKernels(Device& device);  // throws Error(vendor)
  Status run(const std::vector<KernelLaunch>& launches, Stream stream, OnHost on_host) const;
  Status run(const KernelLaunch& launch, Stream stream) const;
  Status run_on_host(Stream stream, OnHost on_host) const;
  Status load_on_host() const;
  Status find(const std::string& kernel, Function& function) const;
  Status failure(const char* call, int error) const;

  Device& device_;
  const Runtime& runtime_;
  std::unique_ptr<const Driver> driver_;
  std::string architecture_, description_;
  // Loading may wait for the device. Launches of other kernels go on meanwhile.
  mutable std::mutex loading_;
  mutable bool loaded_on_host_ = false;  // guarded by loading_
  mutable std::mutex mutex_;             // guards the map
  mutable std::unordered_map<std::string, Function> functions_;
};

}  // namespace hetcomm
