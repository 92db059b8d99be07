#pragma once

#include <string>

#include "transport/transport.h"
#include "transport/ucx/library.h"

namespace hetcomm {

// Empty if UCX carries memory like the sample without staging, else the reason. The loaded UCX and
// its drivers answer: the context must know that kind of memory, and a memory domain must register
// the memory. The domain does so by itself, or as a dmabuf that the device's own domain exports.
// `rdma_device`: such as "mlx5_0"; empty asks about processes of one host. Opens every memory
// domain, so for set-up only.
std::string why_not_direct(const UcxLibrary& ucx, ucp_context_h context, const MemorySample& sample,
                           const std::string& rdma_device);

}  // namespace hetcomm
