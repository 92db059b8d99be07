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

std::vector<Range> values(const std::map<int, Range>& ranges) {
  std::vector<Range> values;
  for (const auto& [island, range] : ranges) values.push_back(range);
  return values;
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
  const int recorded = builder.divide(chunks, chunks, 1);
  const auto relay_of = [&](const Segment& segment) {
    return relays[topology.island_of(segment.block_of)];
  };
  // The rank that adds up an island's sum of a segment.
  const auto adder = [&](const Segment& segment, int island) {
    const int relay = relay_of(segment);
    return relay < 0 || island == relay ? segment.block_of : segment.owners[relay];
  };
  // Whether sums of the segment are added up by one of the builder's ranks.
  const auto adds = [&](const Segment& segment) {
    const int relay = relay_of(segment);
    return builder.builds(segment.block_of) ||
           (relay >= 0 && builder.builds(segment.owners[relay]));
  };
  // The islands whose sums of a segment matter to the builder's ranks, in the order of messages.
  const auto islands_into = [&](const Segment& segment) {
    return islands_from(builder, topology.island_of(segment.block_of), adds(segment));
  };
  // By segment.
  std::vector<OwnerSlots> sums(cut.size(), OwnerSlots(builder)), encoded = sums;
  std::vector<std::map<int, Slots>> received(cut.size());  // at adders, by the sending island
  const auto room_of = [&](const Segment& segment) {
    return largest_part(segment.count, chunks, spec.dtype);
  };
  const auto foreign = [&](const Segment& segment, int island) {
    return topology.island_of(segment.block_of) != island;
  };
  // Pieces name the places of sums. So all members of an island reserve these alike, and first.
  for (size_t s = 0; s < cut.size(); ++s) {
    for (int island : builder.islands()) {
      const bool sums_here = topology.island(island).size() > 1 || island == relay_of(cut[s]);
      if (!sums_here || !foreign(cut[s], island)) continue;
      sums[s].add(island, cut[s].owners[island], room_of(cut[s]), chunks);
    }
  }
  for (size_t s = 0; s < cut.size(); ++s) {
    for (int island : islands_into(cut[s])) {
      if (!foreign(cut[s], island)) continue;
      received[s].emplace(island, Slots(builder, adder(cut[s], island), room_of(cut[s]), chunks));
      if (!builder.lossy() || !builder.builds_island(island)) continue;
      encoded[s].add(island, cut[s].owners[island], room_of(cut[s]), chunks);
    }
  }
  for (int chunk = 0; chunk < recorded; ++chunk) {
    const auto piece_of = [&](size_t s) { return part_of(cut[s], chunk, chunks, spec.dtype); };
    const auto total_of = [&](size_t s) {
      return in(Space::output, piece_of(s), -cut[s].block_of * block_bytes);
    };
    // The sum of an island at its owner.
    const auto sum_of = [&](size_t s, int island) {
      if (topology.island(island).size() == 1) return in(Space::input, piece_of(s));
      if (topology.island_of(cut[s].block_of) == island) return total_of(s);
      return sums[s].at(island, chunk, piece_of(s).count);
    };
    for (int island : builder.islands()) {
      if (topology.island(island).size() == 1) continue;
      std::vector<Piece> pieces;
      for (size_t s = 0; s < cut.size(); ++s) {
        pieces.push_back({.to = cut[s].owners[island],
                          .source = in(Space::input, piece_of(s)),
                          .target = sum_of(s, island)});
      }
      builder.island_reduce_scatter(island, pieces);
    }
    for (size_t s = 0; s < cut.size(); ++s) {
      const int own_island = topology.island_of(cut[s].block_of), relay = relay_of(cut[s]);
      const Range piece = piece_of(s);
      const bool rounded = builder.rounds(cut[s].owners, piece);
      std::map<int, Range> sources = {{own_island, sum_of(s, own_island)}};  // by island
      for (int island : islands_into(cut[s])) {
        if (island == own_island) continue;
        const int owner = cut[s].owners[island];
        Range source = sum_of(s, island);
        Range target = received[s].at(island).at(chunk, piece.count);
        if (rounded) {
          const Range sum = source;
          source = builder.encoded(encoded[s].at(island, chunk, piece.count));
          builder.encode(owner, sum, source, piece);
          target = builder.encoded(target);
        }
        if (island != relay) builder.transfer(owner, source, adder(cut[s], island), target);
        sources[island] = island == relay ? source : target;
      }
      if (!adds(cut[s])) continue;
      if (relay >= 0) {
        const Range own = sources[own_island], sum = sums[s].at(relay, chunk, piece.count),
                    target = received[s].at(relay).at(chunk, piece.count);
        sources.erase(own_island);
        builder.reduce(cut[s].owners[relay], values(sources), sum);
        builder.transfer(cut[s].owners[relay], sum, cut[s].block_of, target);
        sources = {{0, own}, {1, target}};
      }
      builder.reduce(cut[s].block_of, values(sources), total_of(s));
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
