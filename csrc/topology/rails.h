#pragma once

#include <set>
#include <string>
#include <vector>

#include "topology/topology.h"

namespace hetcomm {

// NICs of plain Ethernet that two hosts use together for one message. Each pair of NICs is on a
// network of its own, because IP sends all packets for a network through one NIC. These are
// functions of exchanged facts alone, so both ends get the same answer.

// Networks on which two hosts list the same address: different networks with the same name. Hosts
// whose NICs are all the same are parts of one machine, and do not count.
std::set<std::string> ambiguous_networks(const std::vector<RankInfo>& ranks);

// The first NIC of a rank on each network that is not `ambiguous`.
RailCandidates rail_candidates(const RankInfo& info, const std::set<std::string>& ambiguous,
                               const std::set<UnreachablePair>& unreachable = {});

// The rails between two ranks of different hosts, the fastest first, without unreachable pairs.
// None if fewer than two NICs could be used together, or if one NIC alone is as fast.
std::vector<Rail> find_rails(const RankInfo& a, const RailCandidates& of_a, const RankInfo& b,
                             const RailCandidates& of_b,
                             const std::set<UnreachablePair>& unreachable);

// The NICs with an IP address, by index, plain Ethernet first: RDMA ports have messages to carry,
// and may reach the ports of their own rail only.
std::vector<int> ip_nics(const RankInfo& info);

// The fastest pair of NICs by the slower end, plain Ethernet first. Of equal pairs the path takes
// one on a common network. Ambiguous networks and failed pairs do not count. After the failure of a
// routed pair common networks come first. Without any pair the path joins the first of ip_nics().
IpPath find_ip_path(const RankInfo& a, const RankInfo& b, const std::set<std::string>& ambiguous,
                    const std::set<UnreachablePair>& unreachable);

}  // namespace hetcomm
