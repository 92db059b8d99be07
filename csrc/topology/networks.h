#pragma once

#include <string>
#include <vector>

#include "topology/topology.h"

namespace hetcomm {

// Which ranks one engine serves and over which network: functions of exchanged facts alone, so that
// every rank finds the same.

// The islands, sorted by first member; members sorted by rank.
//  - Ranks with host memory: equal vendor, host and label.
//  - Ranks of a native library: equal vendor and label; without a label, all hosts of the vendor
//    whose best NICs are of one fabric and, for RDMA, share a network.
std::vector<std::vector<int>> find_islands(const std::vector<RankInfo>& ranks);

// The best network that all members of an island share.
IslandNetwork choose_network(const std::vector<RankInfo>& ranks, const std::vector<int>& members);

// Whether both have a NIC of the fabric on one network.
bool share_network(const RankInfo& a, const RankInfo& b, Fabric fabric);

// For each rank the NIC that carries what it sends to other islands, by index; -1 if it has none.
// It is the first one, or plain Ethernet on hosts that share no RDMA network with another island's.
std::vector<int> find_bridge_nics(const std::vector<RankInfo>& ranks,
                                  const std::vector<int>& island_of);

// The address at which the other ranks best reach this one for small things: of plain Ethernet if
// it has any, because RDMA ports may lead to those of the same rail only. The loopback's in need.
std::string contact_address(const RankInfo& info);

}  // namespace hetcomm
