#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "device/cast.h"

namespace hetcomm {

// A kernel of device/kernels with its grid and arguments: all of a call except the device.
struct KernelLaunch {
  std::string kernel;   // for compile_kernel()
  unsigned blocks = 0;  // 0: there is nothing to do
  unsigned threads = 256;
  std::vector<std::string> arguments;  // the bytes of each
};

// The launch for an operation of reduce.h or cast.h on device memory. Results have the same bits as
// on the host. Status(invalid_argument) for more than 256 sources, or for addresses that are no
// multiple of the element's size. Memory accesses take 16 bytes if all addresses have the same
// remainder modulo 16, else single elements. A count of 0 is legal. coder_launch.h has the launches
// of codecs.
Status reduce_launch(KernelLaunch& launch, Dtype dtype, ReduceOp op, void* target,
                     const void* const* sources, int source_count, size_t count);
Status scale_launch(KernelLaunch& launch, Dtype dtype, Scale scale, void* target,
                    const void* source, size_t count);
Status cast_launch(KernelLaunch& launch, Dtype to, void* target, Dtype from, const void* source,
                   size_t count);

}  // namespace hetcomm
