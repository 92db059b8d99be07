#include "plan/algorithms/algorithms.h"
#include "plan/algorithms/orders.h"
#include "plan/algorithms/segments.h"

namespace hetcomm {
namespace {

// The root's island shares each chunk, so that every owner there can send its segments over its own
// uplink. Any other island receives each segment once and shares it. Island i receives from island
// predecessor[i]; the root's island has -1. `order` visits predecessors first.
void hierarchical(PlanBuilder& builder, const std::vector<int>& order,
                  const std::vector<int>& predecessor) {
  const Spec& spec = builder.spec();
  const Chunks chunks(builder, spec.count, 1, static_cast<int64_t>(order.size()));
  const int recorded = chunks.divide(builder);
  std::vector<int> visited = order;
  std::erase_if(visited, [&](int island) {
    const int before = predecessor[island];
    return !builder.builds_island(island) && !(before >= 0 && builder.builds_island(before));
  });
  for (int chunk = 0; chunk < recorded; ++chunk) {
    for (int island : visited) {
      std::vector<Piece> pieces;
      for (const Segment& segment : chunks.segments(chunks.cut_of(chunk))) {
        const Range piece = chunks.piece(chunk, segment);
        const int before = predecessor[island];
        if (before < 0) {
          pieces.push_back({.from = spec.root, .source = in(Space::input, piece), .target = piece});
          continue;
        }
        const int sender = segment.owners[before];
        builder.transfer(sender, sender == spec.root ? in(Space::input, piece) : piece,
                         segment.owners[island], piece);
        pieces.push_back({.from = segment.owners[island], .source = piece, .target = piece});
      }
      builder.island_all_gather(island, pieces);
    }
  }
}

std::vector<int> order_from_root(const PlanBuilder& builder) {
  const Topology& topology = builder.topology();
  return order_from(topology, topology.island_of(builder.spec().root));
}

void flat(PlanBuilder& builder) {
  const int64_t count = builder.spec().count;
  builder.island_all_gather(0, {{.from = builder.spec().root,
                                 .source = builder.input(0, count),
                                 .target = builder.output(0, count)}});
}

void hierarchical_direct(PlanBuilder& builder) {
  const std::vector<int> order = order_from_root(builder);
  std::vector<int> predecessor(order.size(), order[0]);
  predecessor[order[0]] = -1;
  hierarchical(builder, order, predecessor);
}

void hierarchical_chain(PlanBuilder& builder) {
  const std::vector<int> order = order_from_root(builder);
  std::vector<int> predecessor(order.size(), -1);
  for (size_t i = 1; i < order.size(); ++i) predecessor[order[i]] = order[i - 1];
  hierarchical(builder, order, predecessor);
}

void hierarchical_tree(PlanBuilder& builder) {
  const std::vector<int> order = order_from_root(builder);
  std::vector<int> predecessor(order.size(), -1);
  for (size_t i = 1; i < order.size(); ++i) predecessor[order[i]] = order[tree_parent(i)];
  hierarchical(builder, order, predecessor);
}

void hierarchical_nested(PlanBuilder& builder) {
  const ZoneWalk walk(builder.topology(), builder.topology().island_of(builder.spec().root));
  hierarchical(builder, walk.order, walk.parent);
}

}  // namespace

std::vector<Algorithm> broadcast_algorithms() {
  return {
      {Collective::broadcast, "flat", "one step of the native engine", one_island, flat},
      {Collective::broadcast, "hierarchical_direct",
       "the root's island sends each segment to every island", at_least_two_islands,
       hierarchical_direct},
      {Collective::broadcast, "hierarchical_chain", "each island passes segments on to the next",
       at_least_three_islands, hierarchical_chain, false, chain_hops},
      {Collective::broadcast, "hierarchical_tree", "segments pass down a binomial tree of islands",
       at_least_three_islands, hierarchical_tree, false, tree_hops},
      {Collective::broadcast, "hierarchical_nested", "segments enter each zone once, by trees",
       several_zones, hierarchical_nested, false, walk_hops},
  };
}

}  // namespace hetcomm
