#pragma once

#include <set>
#include <string>
#include <vector>

#include "topology/topology.h"

namespace hetcomm {

// Which ranks one engine serves, and over which network. These are functions of exchanged facts
// alone, so every rank gets the same answer.

// The islands, sorted by first member; members sorted by rank.
//  - Ranks with host memory: equal vendor, host and label.
//  - Ranks of a native library: equal vendor and label. Without a label: all hosts of the vendor
//    whose best NICs are of one fabric. With RDMA the NICs also share a network.
std::vector<std::vector<int>> find_islands(const std::vector<RankInfo>& ranks);

// The best network that all members of an island share.
// `ambiguous`: see ambiguous_networks().
IslandNetwork choose_network(const std::vector<RankInfo>& ranks, const std::vector<int>& members,
                             const std::set<std::string>& ambiguous);

// Whether both ranks have a NIC of the fabric on one network.
bool share_network(const RankInfo& a, const RankInfo& b, Fabric fabric);

// For each rank the index of the NIC that carries its messages to other islands; -1 without NICs.
// This is the first NIC. Where some other island shares no RDMA network with the rank's host, it is
// the first NIC of plain Ethernet.
std::vector<int> find_bridge_nics(const std::vector<RankInfo>& ranks,
                                  const std::vector<int>& island_of);

// The address of the first of ip_nics(), or of the loopback if there is none.
std::string contact_address(const RankInfo& info);

}  // namespace hetcomm
