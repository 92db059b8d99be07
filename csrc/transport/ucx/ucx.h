#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/registry.h"

namespace hetcomm {

// What UCX's links use. tcp: TCP alone, whatever UCX_TLS and UCX_NET_DEVICES say. all_but_tcp: a
// transport without a listener, unless UCX_TLS asks for one. all_but_shared_memory: for peers of
// other hosts, or of this one without common shared memory.
enum class Carriers { all, all_but_tcp, all_but_shared_memory, tcp };

// A transport through libucp 1.12 or newer. The process takes the first libucp of this list:
// HETCOMM_UCX_LIBRARY, a loaded libucp, the libucx wheel's, the system's. The system's comes before
// the wheel's if only the system's drives the RDMA devices of this machine. Throws Error(vendor)
// without a usable libucp, Error(invalid_argument) for an unknown interface.
//
// `interfaces`: the network interfaces that links may use, best first. An RDMA device has a name
// such as "mlx5_0" or "mlx5_0:1", an interface one such as "eth0". An empty list takes all but
// loopback and container bridges.
//
// A link that outlives its transport is closed. Requests that are pending when the transport is
// destroyed stay pending, and the transport does not touch them again.
std::unique_ptr<Transport> make_ucx_transport(const std::vector<std::string>& interfaces,
                                              Carriers carriers);

// The row of the registry. A transport without interfaces in its id uses Transports::devices():
// RDMA ports and all interfaces. Without RDMA it uses plain Ethernet, or else any interface with an
// address. Only a transport that listens takes connections over TCP; one with RDMA ports always
// listens, because UCX falls back to TCP.
const TransportKind& ucx_transport();

// Whether UCX's own variables choose devices or transports.
bool user_chooses_ucx_devices();

// "1.22.0 (path)", or the reason why there is no UCX. Never throws.
std::string ucx_version();

}  // namespace hetcomm
