#include "plan/algorithms/algorithms.h"

#include <algorithm>
#include <bit>

#include "plan/algorithms/orders.h"

namespace hetcomm {

std::string any(const Topology&, const Spec&) { return ""; }

std::string one_island(const Topology& topology, const Spec&) {
  if (topology.islands().size() == 1) return "";
  return "needs one island; there are " + std::to_string(topology.islands().size());
}

std::string at_least_two_islands(const Topology& topology, const Spec&) {
  if (topology.islands().size() >= 2) return "";
  return "needs two islands or more; the one that there is serves itself in one step";
}

std::string at_least_three_islands(const Topology& topology, const Spec&) {
  if (topology.islands().size() >= 3) return "";
  return "needs three islands or more; there are " + std::to_string(topology.islands().size());
}

std::string power_of_two(const Topology& topology, const Spec& spec) {
  if (!std::has_single_bit(topology.islands().size())) {
    return "needs a power of two of islands; there are " +
           std::to_string(topology.islands().size());
  }
  return at_least_three_islands(topology, spec);
}

std::string several_zones(const Topology& topology, const Spec& spec) {
  if (topology.zones().empty()) return "needs zones; HETCOMM_ZONE names those of a host";
  bool several = false;
  for (int level = 0; level < std::ssize(topology.zones()); ++level) {
    const size_t zones = topology.zones()[level].size();
    several = several || (zones > 1 && zones < topology.islands().size());
    for (size_t island = 0; island < topology.islands().size(); ++island) {
      const std::vector<int>& members = topology.islands()[island];
      const auto zone_of = [&](int rank) {
        return topology.zone_of(level, topology.host_of(rank));
      };
      const auto other = std::find_if(members.begin(), members.end(), [&](int rank) {
        return zone_of(rank) != zone_of(members[0]);
      });
      if (other == members.end()) continue;
      return "needs islands inside zones; island " + std::to_string(island) + " is in " +
             topology.zones()[level][zone_of(members[0])].name + " and in " +
             topology.zones()[level][zone_of(*other)].name;
    }
  }
  if (!several) return "needs two zones or more, one of them with several islands";
  return spec.feedback ? "has no residuals" : "";
}

Hops ring_hops(const Topology& topology) {
  const int hops = 2 * static_cast<int>(topology.islands().size() - 1);
  return {hops, hops};
}

Hops chain_hops(const Topology& topology) {
  return {static_cast<int>(topology.islands().size() - 1), 1};
}

Hops tree_hops(const Topology& topology) {
  const int depth = static_cast<int>(std::bit_width(topology.islands().size())) - 1;
  return {depth, depth};
}

Hops walk_hops(const Topology& topology) {
  const ZoneWalk walk(topology, 0);
  std::vector<int> depths(walk.order.size());
  for (const int island : walk.order) {
    const int parent = walk.parent[island];
    if (parent >= 0) depths[island] = depths[parent] + 1;
  }
  const int hops = *std::max_element(depths.begin(), depths.end());
  return {hops, hops};
}

Hops route_hops(const Topology& topology) {
  return {static_cast<int>(topology.zones().size()) + 1, 2};
}

const std::vector<Algorithm>& algorithms() {
  static const std::vector<Algorithm> rows = [] {
    std::vector<Algorithm> all;
    for (const auto of_collective :
         {all_reduce_algorithms, broadcast_algorithms, reduce_algorithms, all_gather_algorithms,
          reduce_scatter_algorithms, all_to_all_algorithms, gather_algorithms, scatter_algorithms,
          barrier_algorithms}) {
      const std::vector<Algorithm> some = of_collective();
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }();
  return rows;
}

}  // namespace hetcomm
