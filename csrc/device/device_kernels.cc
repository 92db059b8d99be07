#include "device/device_kernels.h"

#include <map>
#include <type_traits>
#include <vector>

#include "base/config.h"
#include "base/library.h"
#include "base/log.h"
#include "device/kernel_cache.h"
#include "device/reduce.h"

namespace hetcomm {
namespace {

// CUdevice_attribute
constexpr int kComputeCapabilityMajor = 75, kComputeCapabilityMinor = 76;
constexpr int kMostThreads = 0;  // of a block; CUfunction_attribute

}  // namespace

// The functions that load and launch compiled kernels, spelled by the vendor's row.
struct DeviceKernels::Driver {
  explicit Driver(const Runtime& runtime) {
    const Vendor& vendor = *runtime.vendor;
    const auto& functions = vendor.driver.functions;
    const std::string path = vendor.driver.library ? vendor.driver.library : runtime.path;
    const Library library =
        Library::open(std::string(vendor.runtime.name) + " driver", {path},
                      {functions.at("ModuleLoadData"), functions.at("ModuleGetFunction"),
                       functions.at("LaunchKernel"), functions.at("FuncGetAttribute")},
                      "install the driver of the device");
    const auto find = [&](const char* name, auto& function) {
      const auto symbol = functions.find(name);
      if (symbol == functions.end() || !library.has(symbol->second.c_str())) return;
      function =
          library.symbol<std::remove_reference_t<decltype(function)>>(symbol->second.c_str());
    };
    find("ModuleLoadData", ModuleLoadData);
    find("ModuleGetFunction", ModuleGetFunction);
    find("LaunchKernel", LaunchKernel);
    find("FuncGetAttribute", FuncGetAttribute);
    find("GetErrorName", GetErrorName);
    find("DeviceGet", DeviceGet);
    find("DeviceGetAttribute", DeviceGetAttribute);
  }

  int (*ModuleLoadData)(void** module, const void* image) = nullptr;
  int (*ModuleGetFunction)(void** function, void* module, const char* name) = nullptr;
  int (*LaunchKernel)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                      void* stream, void** arguments, void** extra) = nullptr;
  int (*FuncGetAttribute)(int* value, int attribute, void* function) = nullptr;
  // Optional. Without DeviceGet the vendor's compiler asks the device for its architecture.
  int (*GetErrorName)(int error, const char** name) = nullptr;
  int (*DeviceGet)(int* device, int ordinal) = nullptr;
  int (*DeviceGetAttribute)(int* value, int attribute, int device) = nullptr;
};

const DeviceKernels* DeviceKernels::of(Device& device, std::string& why_not) {
  struct Entry {
    std::unique_ptr<const DeviceKernels> kernels;
    std::string why_not;
  };
  static auto* mutex = new std::mutex;
  static auto* entries = new std::map<const Device*, Entry>;
  std::lock_guard lock(*mutex);
  const auto [place, is_new] = entries->try_emplace(&device);
  Entry& entry = place->second;
  if (is_new) {
    try {
      entry.kernels.reset(new DeviceKernels(device));
      log(LogLevel::info, device.describe() + ": kernels by " + entry.kernels->describe());
    } catch (const Error& error) {
      entry.why_not = error.status().details().message;
    }
  }
  why_not = entry.why_not;
  return entry.kernels.get();
}

DeviceKernels::DeviceKernels(Device& device)
    : device_(device), runtime_(load_runtime(device.vendor())) {
  if (setting("HETCOMM_KERNELS", 1, 0, 1) == 0) {
    throw Error(Code::vendor, device.describe() + " runs no kernels: HETCOMM_KERNELS=0");
  }
  if (device.emulated()) {
    description_ = "the host's functions, on an emulated device";
    return;
  }
  description_ = describe_compiler(device.vendor());
  driver_ = std::make_unique<const Driver>(runtime_);
  hetcomm::check(device.enter());
  runtime_.Free(nullptr);  // older runtimes make the context at its first use
  if (driver_->DeviceGet != nullptr) {
    int handle = 0, major = 0, minor = 0;
    hetcomm::check(failure("DeviceGet", driver_->DeviceGet(&handle, device.index())));
    const auto attribute = driver_->DeviceGetAttribute;
    hetcomm::check(
        failure("DeviceGetAttribute", attribute(&major, kComputeCapabilityMajor, handle)));
    hetcomm::check(
        failure("DeviceGetAttribute", attribute(&minor, kComputeCapabilityMinor, handle)));
    architecture_ = "sm_" + std::to_string(major) + std::to_string(minor);
    description_ += ", " + architecture_;
  }
  // Fails if the compiler and the driver do not agree about the device.
  const void* nothing = nullptr;
  hetcomm::check(reduce(Dtype::float32, ReduceOp::sum, nullptr, &nothing, 1, 0, nullptr));
}

Status DeviceKernels::failure(const char* call, int error) const {
  if (error == 0) return {};
  const char* name = nullptr;
  if (driver_->GetErrorName != nullptr) driver_->GetErrorName(error, &name);
  return Status(Code::vendor, std::string(runtime_.vendor->runtime.name) + " driver: " + call +
                                  ": " + (name ? name : "error") + " (" + std::to_string(error) +
                                  ")");
}

Status DeviceKernels::find(const std::string& kernel, Function& function) const {
  const auto is_loaded = [&] {
    std::lock_guard lock(mutex_);
    const auto found = functions_.find(kernel);
    if (found == functions_.end()) return false;
    function = found->second;
    return true;
  };
  if (is_loaded()) return {};
  std::lock_guard loading(loading_);
  if (is_loaded()) return {};
  OutsideCapture outside(runtime_);
  Status status;
  try {
    const CompiledKernel compiled = cached_kernel(*runtime_.vendor, architecture_, kernel);
    void* module = nullptr;
    status = failure("ModuleLoadData", driver_->ModuleLoadData(&module, compiled.code.data()));
    if (status) {
      status = failure("ModuleGetFunction",
                       driver_->ModuleGetFunction(&function, module, compiled.symbol.c_str()));
    }
    // Asking for an attribute loads the kernel. Its first launch would otherwise load it, and may
    // wait for all work of the device, under the executor's lock.
    int threads = 0;
    if (status) {
      status =
          failure("FuncGetAttribute", driver_->FuncGetAttribute(&threads, kMostThreads, function));
    }
  } catch (const Error& error) {
    status = error.status();
  }
  std::lock_guard lock(mutex_);
  if (status) functions_.emplace(kernel, function);
  return status;
}

Status DeviceKernels::run(const std::vector<KernelLaunch>& launches, Stream stream,
                          OnHost on_host) const {
  if (Status status = device_.make_current(); !status) return status;
  if (device_.emulated()) {
    return launches[0].blocks == 0 ? load_on_host() : run_on_host(stream, std::move(on_host));
  }
  for (const KernelLaunch& launch : launches) {
    if (Status status = run(launch, stream); !status) return status;
  }
  return {};
}

Status DeviceKernels::run(const KernelLaunch& launch, Stream stream) const {
  Function function = nullptr;
  if (Status status = find(launch.kernel, function); !status) return status;
  if (launch.blocks == 0) return {};
  std::vector<void*> arguments;
  for (const std::string& argument : launch.arguments) {
    arguments.push_back(const_cast<char*>(argument.data()));
  }
  return failure("LaunchKernel",
                 driver_->LaunchKernel(function, launch.blocks, 1, 1, launch.threads, 1, 1, 0,
                                       stream, arguments.data(), nullptr));
}

// An emulated device may wait for all its work at the first launch, as a driver may when the launch
// loads a kernel.
Status DeviceKernels::load_on_host() const {
  std::lock_guard loading(loading_);
  if (loaded_on_host_) return {};
  try {
    const Stream stream = device_.make_stream();
    const Status status = run_on_host(stream, [] {});
    device_.destroy(stream);
    loaded_on_host_ = status.ok();
    return status;
  } catch (const Error& error) {
    return error.status();
  }
}

Status DeviceKernels::run_on_host(Stream stream, OnHost on_host) const {
  struct Work {
    OnHost perform;
    bool once;
  };
  // A graph may run its work again at any time, so that work is never deleted.
  auto work = std::make_unique<Work>(std::move(on_host), !device_.capturing(stream));
  const auto perform = [](void* pointer) {
    std::unique_ptr<Work> work(static_cast<Work*>(pointer));
    work->perform();
    if (!work->once) work.release();
  };
  const Status status = device_.call(stream, perform, work.get());
  if (status) work.release();
  return status;
}

Status DeviceKernels::reduce(Dtype dtype, ReduceOp op, void* target, const void* const* sources,
                             int source_count, size_t count, Stream stream) const {
  KernelLaunch launch;
  const Status status = reduce_launch(launch, dtype, op, target, sources, source_count, count);
  if (!status) return status;
  return run({launch}, stream, [=, all = std::vector(sources, sources + source_count)] {
    hetcomm::reduce(dtype, op, target, all.data(), source_count, count);
  });
}

Status DeviceKernels::scale(Dtype dtype, Scale scale, void* target, const void* source,
                            size_t count, Stream stream) const {
  KernelLaunch launch;
  const Status status = scale_launch(launch, dtype, scale, target, source, count);
  if (!status) return status;
  return run({launch}, stream, [=] { scaled_sum(dtype, scale, target, &source, 1, count); });
}

Status DeviceKernels::cast(Dtype to, void* target, Dtype from, const void* source, size_t count,
                           Stream stream) const {
  KernelLaunch launch;
  const Status status = cast_launch(launch, to, target, from, source, count);
  if (!status) return status;
  return run({launch}, stream, [=] { hetcomm::cast(to, target, from, source, count); });
}

Status DeviceKernels::encode(Dtype dtype, const DeviceFormat& format, void* encoded,
                             const void* source, float* residual, size_t count, Stream stream,
                             OnHost on_host) const {
  std::vector<KernelLaunch> launches;
  const Status status = encode_launches(launches, dtype, format, encoded, source, residual, count);
  return status ? run(launches, stream, std::move(on_host)) : status;
}

Status DeviceKernels::decode(Dtype dtype, const DeviceFormat& format, void* target,
                             const void* first, const void* const* encoded, int source_count,
                             size_t count, Stream stream, OnHost on_host) const {
  KernelLaunch launch;
  const Status status =
      decode_launch(launch, dtype, format, target, first, encoded, source_count, count);
  return status ? run({launch}, stream, std::move(on_host)) : status;
}

}  // namespace hetcomm
