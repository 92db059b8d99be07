#include "plan/algorithms/algorithms.h"

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
