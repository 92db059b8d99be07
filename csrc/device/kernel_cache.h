#pragma once

#include <string>

#include "device/kernel_compiler.h"

namespace hetcomm {

// As compile_kernel(), by way of a folder of compiled kernels, so that the next process of this
// user compiles nothing. HETCOMM_KERNEL_CACHE names the folder; $XDG_CACHE_HOME/hetcomm/kernels or
// ~/.cache/hetcomm/kernels if unset, none if 0. A file is of one kernel, architecture, compiler and
// release of hetcomm. Only files that this user alone can write count, since the device runs their
// code. A folder that cannot be used costs a warning for each process, no error. Without an
// architecture nothing is kept. Thread-safe, between processes, too.
CompiledKernel cached_kernel(const Vendor& vendor, const std::string& architecture,
                             const std::string& kernel);

}  // namespace hetcomm
