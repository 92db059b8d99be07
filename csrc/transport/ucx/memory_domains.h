#pragma once

#include <string>

#include "transport/transport.h"
#include "transport/ucx/library.h"

namespace hetcomm {

// Whether UCX carries a device's memory by itself, as the loaded UCX and the drivers below it say:
// the context must know that kind of memory, and a memory domain must register it, either by itself
// or as a dmabuf that the device's own domain exports. `rdma_device` is one such as "mlx5_0"; empty
// asks about processes of one host. Empty if so, else why not. Opens every memory domain: for
// set-up only.
std::string why_not_direct(const UcxLibrary& ucx, ucp_context_h context, const MemorySample& sample,
                           const std::string& rdma_device);

}  // namespace hetcomm
