#pragma once

namespace hetcomm {

inline constexpr const char* kNoFreePort =
    "all ports of net.ipv4.ip_local_port_range may be in use: widen the range, or end other "
    "connections";

// Throws Error(transport) if the kernel has no free TCP port for `user`.
void require_free_port(const char* user);

}  // namespace hetcomm
