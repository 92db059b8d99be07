#pragma once

#include <memory>

#include "device/device.h"
#include "topology/topology.h"
#include "transport/transport.h"

namespace hetcomm {

// Opens the device that holds the buffers of a rank, and adds the device to the facts. Null for a
// rank whose buffers are host memory. `index` counts the vendor's devices; if it is negative,
// HETCOMM_DEVICE or LOCAL_RANK counts. `transport` says how it reaches the device's memory; null if
// there is none. Throws Error(vendor).
std::shared_ptr<Device> open_device(RankInfo& info, const Transport* transport, int index = -1);

}  // namespace hetcomm
