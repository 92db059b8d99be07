#include "plan/algorithms/algorithms.h"

#include <bit>

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
