#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/registry.h"

namespace hetcomm {

// UCX through libucp 1.12 or newer, found at run time: HETCOMM_UCX_LIBRARY, then a libucp the
// process has loaded already, then the libucx wheel's, then the system's; the system's comes before
// the wheel's where only it can drive the RDMA devices of this machine. Throws Error(vendor) if
// there is none or it is too old, Error(invalid_argument) for an unknown interface.
// `interfaces`: the network interfaces it may use, best first (RDMA device names such as "mlx5_0"
// or "mlx5_0:1", or interface names such as "eth0"); empty takes all but loopback and container
// bridges. Without `rdma`, links are over TCP on these interfaces, whatever UCX_TLS and
// UCX_NET_DEVICES say. A link that outlives its transport is closed. Requests that are pending when
// the transport is destroyed stay pending, and are not touched again.
std::unique_ptr<Transport> make_ucx_transport(const std::vector<std::string>& interfaces,
                                              bool rdma = true);

// The row of the registry. Without interfaces in its id, a transport uses the NICs of Transports:
// RDMA ports and all interfaces, or without RDMA plain Ethernet, else any interface with an
// address.
const TransportKind& ucx_transport();

// Whether UCX's own variables choose devices or transports.
bool user_chooses_ucx_devices();

// "1.22.0 (path)", or why there is none. Never throws.
std::string ucx_version();

}  // namespace hetcomm
