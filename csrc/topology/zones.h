#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "topology/topology.h"

namespace hetcomm {

// Reads the labels of all ranks, such as "paris@1gbit/rack3". The zones of each level, the widest
// first; none without labels. Throws Error(invalid_argument) for labels that contradict: ranks of
// one host in unlike zones, two uplinks of one zone, hosts with unlike numbers of zones.
std::vector<std::vector<Zone>> find_zones(const std::vector<RankInfo>& ranks,
                                          const std::vector<std::vector<int>>& hosts);

}  // namespace hetcomm
