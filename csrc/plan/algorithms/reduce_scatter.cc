#include "plan/algorithms/algorithms.h"
#include "plan/algorithms/routes.h"

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
// sharded over the members. A member sends its sums to the block's rank, or to an island on the
// way. There they are added up in island order.
void collect(PlanBuilder& builder, const Routes& routes) {
  const Topology& topology = builder.topology();
  const Spec& spec = builder.spec();
  const int64_t block_bytes = builder.output(0, spec.count).bytes();
  const std::vector<Segment> cut = block_segments(topology, spec.count, spec.dtype);
  const int chunks = block_chunks(builder, cut.size(), routes);
  const int recorded = builder.divide(chunks, chunks, 1);
  const auto room_of = [&](const Segment& segment) {
    return largest_part(segment.count, chunks, spec.dtype);
  };
  // By segment.
  std::vector<OwnerSlots> sums(cut.size(), OwnerSlots(builder)), encoded = sums;
  std::vector<std::map<int, Slots>> received(cut.size());  // by the sending island
  std::vector<std::vector<Routes::Hop>> hops;              // a sum goes from `to` to `from`
  // Pieces name the places of sums. So all members of an island reserve these alike, and first.
  for (size_t s = 0; s < cut.size(); ++s) {
    for (int island : builder.islands()) {
      if (topology.island_of(cut[s].block_of) == island) continue;
      if (topology.island(island).size() == 1 && !routes.passes_on(cut[s], island)) continue;
      sums[s].add(island, cut[s].owners[island], room_of(cut[s]), chunks);
    }
  }
  for (size_t s = 0; s < cut.size(); ++s) {
    hops.push_back(routes.hops(builder, cut[s]));
    for (const auto& [from, to, depth] : hops[s]) {
      received[s].emplace(to, Slots(builder, cut[s].owners[from], room_of(cut[s]), chunks));
      if (!builder.lossy() || !builder.builds_island(to)) continue;
      encoded[s].add(to, cut[s].owners[to], room_of(cut[s]), chunks);
    }
    std::stable_sort(hops[s].begin(), hops[s].end(),
                     [](const auto& a, const auto& b) { return a.depth > b.depth; });
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
      const Range piece = piece_of(s);
      const bool rounded = builder.rounds(cut[s].owners, piece);
      std::map<int, std::map<int, Range>> others;  // sums, by receiving and by sending island
      const auto add_up = [&](int island, const Range& total) {
        std::map<int, Range>& sources = others[island];
        sources[island] = sum_of(s, island);
        builder.reduce(cut[s].owners[island], values(sources), total);
      };
      for (const auto& [from, to, depth] : hops[s]) {
        const int owner = cut[s].owners[to];
        Range source = sum_of(s, to), target = received[s].at(to).at(chunk, piece.count);
        if (others.contains(to)) {
          source = sums[s].at(to, chunk, piece.count);
          add_up(to, source);
        }
        if (rounded) {
          const Range sum = source;
          source = builder.encoded(encoded[s].at(to, chunk, piece.count));
          builder.encode(owner, sum, source, piece);
          target = builder.encoded(target);
        }
        builder.transfer(owner, source, cut[s].owners[from], target);
        others[from][to] = target;
      }
      if (builder.builds(cut[s].block_of)) add_up(topology.island_of(cut[s].block_of), total_of(s));
    }
  }
}

void hierarchical(PlanBuilder& builder) {
  const Topology& topology = builder.topology();
  // A codec would round a sum twice that is passed on.
  const int64_t block_bytes = builder.output(0, builder.spec().count).bytes();
  collect(builder,
          builder.lossy() ? Routes::direct(topology) : Routes::by_uplink(topology, block_bytes));
}

void nested(PlanBuilder& builder) { collect(builder, Routes::by_zone(builder.topology())); }

}  // namespace

std::vector<Algorithm> reduce_scatter_algorithms() {
  return {
      {Collective::reduce_scatter, "flat", "one step of the native engine", one_island, flat, true},
      {Collective::reduce_scatter, "hierarchical",
       "each island sums foreign blocks and exports them once", at_least_two_islands, hierarchical,
       true},
      {Collective::reduce_scatter, "hierarchical_nested",
       "each zone sums foreign blocks and exports them once", several_zones, nested, false,
       route_hops},
  };
}

}  // namespace hetcomm
