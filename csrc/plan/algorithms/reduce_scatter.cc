#include "plan/algorithms/algorithms.h"
#include "plan/algorithms/segments.h"

namespace hetcomm {
namespace {

void flat(PlanBuilder& builder) {
  const int64_t count = builder.spec().count;
  std::vector<Piece> pieces;
  for (int rank : builder.topology().island(0)) {
    pieces.push_back({.to = rank,
                      .source = builder.input(rank * count, count),
                      .target = builder.output(0, count)});
  }
  builder.island_reduce_scatter(0, pieces);
}

// Each island sums all blocks. Blocks of its members are summed at their ranks. Foreign blocks are
// sharded over the members, which send the sums to the block's rank. That rank adds up in island
// order. Behind a slow uplink it gets one sum from a relay, which adds up those of other islands.
void hierarchical(PlanBuilder& builder) {
  const Topology& topology = builder.topology();
  const Spec& spec = builder.spec();
  const int islands = static_cast<int>(topology.islands().size());
  const int64_t block_bytes = builder.output(0, spec.count).bytes();
  std::vector<int> relays = relays_by_uplink(topology, block_bytes);
  // A codec would round a relayed sum twice.
  if (builder.lossy()) relays.assign(islands, -1);
  const std::vector<Segment> cut = block_segments(topology, spec.count, spec.dtype);
  const int chunks = block_chunks(builder, cut.size(), relays);
  const auto relay_of = [&](const Segment& segment) {
    return relays[topology.island_of(segment.block_of)];
  };
  // The rank that adds up an island's sum of a segment.
  const auto adder = [&](const Segment& segment, int island) {
    const int relay = relay_of(segment);
    return relay < 0 || island == relay ? segment.block_of : segment.owners[relay];
  };
  // By segment and island.
  std::vector<std::vector<Slots>> sums(cut.size()), received(cut.size()), encoded(cut.size());
  for (size_t s = 0; s < cut.size(); ++s) {
    const int64_t room = largest_part(cut[s].count, chunks, spec.dtype);
    const int relay = relay_of(cut[s]);
    for (int island = 0; island < islands; ++island) {
      const bool foreign = topology.island_of(cut[s].block_of) != island;
      const bool alone = topology.island(island).size() == 1;
      const bool sums_here = foreign && (!alone || island == relay);
      sums[s].emplace_back(builder, cut[s].owners[island], sums_here ? room : 0, chunks);
      received[s].emplace_back(builder, adder(cut[s], island), foreign ? room : 0, chunks);
      const bool encodes = foreign && builder.lossy();
      encoded[s].emplace_back(builder, cut[s].owners[island], encodes ? room : 0, chunks);
    }
  }
  for (int chunk = 0; chunk < chunks; ++chunk) {
    // The sum of each island at its owner, by segment and island.
    std::vector<std::vector<Range>> sources(cut.size());
    for (int island = 0; island < islands; ++island) {
      std::vector<Piece> pieces;
      for (size_t s = 0; s < cut.size(); ++s) {
        const Range piece = part_of(cut[s], chunk, chunks, spec.dtype);
        const Range source = in(Space::input, piece);
        Range target = sums[s][island].at(chunk, piece.count);
        if (topology.island_of(cut[s].block_of) == island) {
          target = in(Space::output, piece, -cut[s].block_of * block_bytes);
        }
        const bool alone = topology.island(island).size() == 1;
        sources[s].push_back(alone ? source : target);
        if (alone) continue;
        pieces.push_back({.to = cut[s].owners[island], .source = source, .target = target});
      }
      builder.island_reduce_scatter(island, pieces);
    }
    for (size_t s = 0; s < cut.size(); ++s) {
      const int own_island = topology.island_of(cut[s].block_of);
      const Range piece = part_of(cut[s], chunk, chunks, spec.dtype);
      const bool rounded = builder.rounds(cut[s].owners, piece);
      const int relay = relay_of(cut[s]);
      for (int shift = 1; shift < islands; ++shift) {
        const int island = (own_island + shift) % islands;
        const int owner = cut[s].owners[island];
        Range target = received[s][island].at(chunk, piece.count);
        if (rounded) {
          const Range sum = sources[s][island];
          sources[s][island] = builder.encoded(encoded[s][island].at(chunk, piece.count));
          builder.encode(owner, sum, sources[s][island], piece);
          target = builder.encoded(target);
        }
        if (island == relay) continue;
        builder.transfer(owner, sources[s][island], adder(cut[s], island), target);
        sources[s][island] = target;
      }
      if (relay >= 0) {
        const Range own = sources[s][own_island], sum = sums[s][relay].at(chunk, piece.count),
                    target = received[s][relay].at(chunk, piece.count);
        sources[s].erase(sources[s].begin() + own_island);
        builder.reduce(cut[s].owners[relay], sources[s], sum);
        builder.transfer(cut[s].owners[relay], sum, cut[s].block_of, target);
        sources[s] = {own, target};
      }
      builder.reduce(cut[s].block_of, sources[s],
                     in(Space::output, piece, -cut[s].block_of * block_bytes));
    }
  }
}

}  // namespace

std::vector<Algorithm> reduce_scatter_algorithms() {
  return {
      {Collective::reduce_scatter, "flat", "one step of the native engine", one_island, flat, true},
      {Collective::reduce_scatter, "hierarchical",
       "each island sums foreign blocks and exports them once", at_least_two_islands, hierarchical,
       true},
  };
}

}  // namespace hetcomm
