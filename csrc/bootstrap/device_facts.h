#pragma once

#include <memory>

#include "device/device.h"
#include "topology/topology.h"
#include "transport/transport.h"

namespace hetcomm {

// Opens the device whose memory the buffers of a rank are, if its vendor has devices, and adds what
// there is to say about it to the facts. Null for a rank whose buffers are host memory. `index`
// among the vendor's devices: if negative, HETCOMM_DEVICE, else LOCAL_RANK. `transport`, null if
// there is none, is asked how it reaches the device's memory. Throws Error(vendor).
std::shared_ptr<Device> open_device(RankInfo& info, const Transport* transport, int index = -1);

}  // namespace hetcomm
