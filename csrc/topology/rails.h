#pragma once

#include <set>
#include <string>
#include <vector>

#include "topology/topology.h"

namespace hetcomm {

// NICs of plain Ethernet that messages between two hosts use together, each pair on a network of
// its own, since IP sends what is for one network through one NIC. Functions of exchanged facts
// alone, so that both ends find the same.

// Networks on which two hosts have one address: each has a network of its own by that name.
std::set<std::string> unlike_networks(const std::vector<RankInfo>& ranks);

// The first NIC of a rank on each network that is not `unlike`.
RailCandidates rail_candidates(const RankInfo& info, const std::set<std::string>& unlike,
                               const std::set<UnreachablePair>& unreachable = {});

// The rails between two ranks of unlike hosts, the fastest first; none where fewer than two could
// be used together, or where one NIC alone is as fast. Without unreachable pairs.
std::vector<Rail> find_rails(const RankInfo& a, const RailCandidates& of_a, const RankInfo& b,
                             const RailCandidates& of_b,
                             const std::set<UnreachablePair>& unreachable);
}  // namespace hetcomm
