#pragma once

#include <string>

#include "device/vendor.h"

namespace hetcomm {

// The source of all device kernels: csrc/device/kernels/*.cuh as one text that includes nothing, in
// namespace hetcomm. nvcc and hipcc compile it too.
const char* device_text();

struct CompiledKernel {
  std::string code;    // for the driver's module functions
  std::string symbol;  // the kernel's name in the code
};

// Compiles one kernel, such as "reduce_kernel<hetcomm::float16, hetcomm::Op::sum>", with the
// vendor's run-time compiler (NVRTC, hipRTC), which is loaded at first use. Needs no device if
// `architecture` is given ("sm_90", "gfx942"); empty means the current device's, for AMD only.
// Takes a fraction of a second. Throws Error(vendor) with the failed search or the compiler's log.
// Thread-safe.
CompiledKernel compile_kernel(const Vendor& vendor, const std::string& architecture,
                              const std::string& kernel);

// "NVRTC 13.0 (path)"; throws Error(vendor).
std::string describe_compiler(const Vendor& vendor);

}  // namespace hetcomm
