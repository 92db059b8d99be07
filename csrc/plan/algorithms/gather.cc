#include "plan/algorithms/algorithms.h"

namespace hetcomm {
namespace {

void direct(PlanBuilder& builder) {
  const Topology& topology = builder.topology();
  const Spec& spec = builder.spec();
  const int root_island = topology.island_of(spec.root);
  const Range block = builder.input(0, spec.count);
  std::vector<Piece> pieces;
  for (int rank = 0; rank < topology.size(); ++rank) {
    const Range target = builder.output(rank * spec.count, spec.count);
    if (topology.island_of(rank) == root_island) {
      pieces.push_back({.from = rank, .to = spec.root, .source = block, .target = target});
    } else {
      builder.transfer(rank, block, spec.root, target);
    }
  }
  builder.island_all_to_all(root_island, pieces);
}

}  // namespace

std::vector<Algorithm> gather_algorithms() {
  return {
      {Collective::gather, "direct",
       "native inside the root's island, one message per foreign rank", any, direct},
  };
}

}  // namespace hetcomm
