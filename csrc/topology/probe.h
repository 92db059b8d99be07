#pragma once

#include <string>
#include <vector>

#include "topology/topology.h"

namespace hetcomm {

// Identity of this memory system: boot id, host name, network-namespace inode and shared-memory
// mount id. HETCOMM_HOST_ID overrides it. Throws Error(invalid_argument) if one cannot be read.
std::string host_identity();

// The usable network interfaces and RDMA ports, best first: up, with an address (InfiniBand
// ports need none; RoCE ports need a RoCE v2 GID that carries it), not loopback, not a container
// bridge or tunnel (docker, veth towards containers, virbr, tun, ...) as long as a real one exists.
// RDMA comes first, then the faster, the one with the default route, and the order of names. Facts
// come from sysfs (HETCOMM_SYSFS_ROOT, default /sys). HETCOMM_SOCKET_IFNAME (a comma-separated list
// of names) restricts and orders the choice; throws Error(invalid_argument) if one of its names
// does not exist or cannot be used. On a machine without any, the loopback interface is returned.
std::vector<Nic> probe_nics();

// Why each interface was taken or left out, one line each, for `hetcomm topo`.
std::vector<std::string> explain_nics();

// Everything this process can tell of itself; island: HETCOMM_ISLAND. What its device and libraries
// are is left to the caller.
RankInfo probe_rank();

// Orders info.nics for a device with this PCI bus id, "0000:1b:00.0": the nearest RDMA ports first.
void prefer_near(const std::string& bus, RankInfo& info);

}  // namespace hetcomm
