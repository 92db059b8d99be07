#include "device/vendor.h"

namespace hetcomm {

const std::vector<Vendor>& vendors() {
  static const auto* table = new std::vector<Vendor>{
      {
          .name = "nvidia",
          .runtime = "CUDA",
          .prefix = "cuda",
          .memory = MemoryKind::cuda,
          .runtime_libraries = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"},
          .runtime_variable = "HETCOMM_CUDA_LIBRARY",
          .ccl = "NCCL",
          .ccl_libraries = {"libnccl.so.2"},
          .ccl_variable = "HETCOMM_NCCL_LIBRARY",
          .visible_variable = "CUDA_VISIBLE_DEVICES",
          .torch_library = "libtorch_cuda.so",
          .driver_library = "libcuda.so.1",
          // CUDA 12 has two, of which the one without suffix is an older structure's.
          .spellings = {{"GetDeviceProperties",
                         {"cudaGetDeviceProperties_v2", "cudaGetDeviceProperties"}}},
          .stream_wait_value = "cuStreamWaitValue32_v2",
          .wait_flush = 1u << 30,
          .version_major = 1000,
          .version_minor = 10,
          .oldest_version = 11080,
          .remedy = "install the CUDA runtime (pip install nvidia-cuda-runtime, or a torch for "
                    "CUDA), or set HETCOMM_CUDA_LIBRARY to the path of a libcudart.so",
      },
      {
          .name = "amd",
          .runtime = "HIP",
          .prefix = "hip",
          .memory = MemoryKind::rocm,
          // torch's wheels for ROCm bring the file without a version.
          .runtime_libraries = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"},
          .runtime_variable = "HETCOMM_HIP_LIBRARY",
          .ccl = "RCCL",
          .ccl_libraries = {"librccl.so.1", "librccl.so"},
          .ccl_variable = "HETCOMM_RCCL_LIBRARY",
          .visible_variable = "HIP_VISIBLE_DEVICES",
          .torch_library = "libtorch_hip.so",
          .driver_library = nullptr,
          .spellings = {{"HostAlloc", {"hipHostMalloc"}},
                        {"FreeHost", {"hipHostFree"}},
                        {"GetDeviceProperties",
                         {"hipGetDevicePropertiesR0600", "hipGetDeviceProperties"}}},
          // hipStreamWaitValue32 takes memory of hipExtMallocWithFlags(hipMallocSignalMemory) only.
          .stream_wait_value = nullptr,
          .wait_flush = 0,
          .version_major = 10000000,
          .version_minor = 100000,
          // Before 6.0 the kinds of memory that hipPointerGetAttributes tells had other numbers.
          .oldest_version = 60000000,
          .remedy = "install ROCm's HIP runtime (or a torch for ROCm), or set HETCOMM_HIP_LIBRARY "
                    "to the path of a libamdhip64.so",
      },
  };
  return *table;
}

const Vendor* find_vendor(const std::string& name) {
  for (const Vendor& vendor : vendors()) {
    if (name == vendor.name) return &vendor;
  }
  return nullptr;
}

LibrarySearch Vendor::runtime_search() const {
  return {.what = std::string(runtime) + " runtime",
          .names = runtime_libraries,
          .variable = runtime_variable,
          .remedy = std::string(remedy) + "; or, if this rank has no such device, correct " +
                    "HETCOMM_VENDOR, which is " + name + " here (cpu is always possible)",
          .user = torch_library,
          .symbol = symbols("GetDeviceCount").front()};
}

LibrarySearch Vendor::ccl_search() const {
  return {.what = ccl,
          .names = ccl_libraries,
          .variable = ccl_variable,
          .remedy = std::string("install ") + ccl + " (torch for " + runtime +
                    " brings it), or set " + ccl_variable + " to the path of a " +
                    ccl_libraries.front(),
          .user = torch_library,
          .symbol = "ncclGetUniqueId"};
}

std::vector<std::string> Vendor::symbols(const std::string& function) const {
  for (const auto& [name, spelled] : spellings) {
    if (name == function) return spelled;
  }
  return {prefix + function};
}

std::string Vendor::version_text(int version) const {
  return std::string(runtime) + " " + std::to_string(version / version_major) + "." +
         std::to_string(version % version_major / version_minor);
}

}  // namespace hetcomm
