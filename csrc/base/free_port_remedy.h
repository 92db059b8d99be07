#pragma once

namespace hetcomm {

// What to do where the kernel has no free TCP port.
inline constexpr const char* kFreePortRemedy =
    "all ports of net.ipv4.ip_local_port_range may be in use: widen the range, or end other "
    "connections";

}  // namespace hetcomm
