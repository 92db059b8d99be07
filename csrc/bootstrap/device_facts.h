#pragma once

#include <memory>

#include "device/device.h"
#include "topology/topology.h"
#include "transport/transport.h"

namespace hetcomm {

// RankInfo::direct_bytes of a rank on a device: HETCOMM_DIRECT_BYTES.
int64_t least_direct_bytes();

// Opens the device that holds the buffers of a rank, and adds its facts. Returns null for buffers
// in host memory. `index`: among the vendor's devices; if negative, HETCOMM_DEVICE or LOCAL_RANK.
// `transport`, if there is one, says whether it reaches the device's memory. Throws Error(vendor).
std::shared_ptr<Device> open_device(RankInfo& info, const Transport* transport, int index = -1);

}  // namespace hetcomm
