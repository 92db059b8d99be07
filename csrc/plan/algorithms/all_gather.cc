#include "plan/algorithms/algorithms.h"
#include "plan/algorithms/routes.h"

namespace hetcomm {
namespace {

void share_own_blocks(PlanBuilder& builder, int island) {
  const int64_t count = builder.spec().count;
  std::vector<Piece> pieces;
  for (int rank : builder.topology().island(island)) {
    pieces.push_back({.from = rank,
                      .source = builder.input(0, count),
                      .target = builder.output(rank * count, count)});
  }
  builder.island_all_gather(island, pieces);
}

void flat(PlanBuilder& builder) { share_own_blocks(builder, 0); }

// Every block crosses once to each other island, spread over the uplinks of that island's members.
// The members then share the imported parts. With a lossy codec the own island gets the same
// rounded values.
void spread(PlanBuilder& builder, const Routes& routes) {
  const Topology& topology = builder.topology();
  const Spec& spec = builder.spec();
  const int64_t block_bytes = builder.input(0, spec.count).bytes();
  const std::vector<Segment> cut = block_segments(topology, spec.count, spec.dtype);
  const int chunks = block_chunks(builder, cut.size(), routes);
  const int recorded = builder.divide(chunks, chunks, 1);
  std::vector<std::vector<Routes::Hop>> hops;  // by segment
  for (const Segment& segment : cut) hops.push_back(routes.hops(builder, segment));
  std::vector<OwnerSlots> encoded(cut.size(), OwnerSlots(builder));  // by segment
  for (size_t s = 0; builder.lossy() && s < cut.size(); ++s) {
    const int64_t room = largest_part(cut[s].count, chunks, spec.dtype);
    for (int island : builder.islands()) {
      encoded[s].add(island, cut[s].owners[island], room, chunks);
    }
  }
  for (int island : builder.islands()) {
    if (!builder.lossy()) share_own_blocks(builder, island);
  }
  for (int chunk = 0; chunk < recorded; ++chunk) {
    std::map<int, std::vector<Piece>> shared;  // by island
    for (size_t s = 0; s < cut.size(); ++s) {
      const Range piece = part_of(cut[s], chunk, chunks, spec.dtype);
      const int own = cut[s].block_of, own_island = topology.island_of(own);
      const bool rounded = builder.rounds(cut[s].owners, piece);
      const auto at = [&](int island) {
        return rounded ? builder.encoded(encoded[s].at(island, chunk, piece.count)) : piece;
      };
      Range block = in(Space::input, piece, -own * block_bytes);
      if (rounded) {
        builder.encode(own, block, at(own_island), piece);
        block = at(own_island);
        builder.decode(own, block, piece);
      } else if (builder.lossy()) {
        builder.copy(own, block, piece);
      }
      if (builder.lossy()) {
        shared[own_island].push_back({.from = own, .source = piece, .target = piece});
      }
      for (const auto& [from, to, depth] : hops[s]) {
        const int importer = cut[s].owners[to];
        builder.transfer(cut[s].owners[from], from == own_island ? block : at(from), importer,
                         at(to));
        if (rounded) builder.decode(importer, at(to), piece);
        if (!builder.builds_island(to)) continue;
        shared[to].push_back({.from = importer, .source = piece, .target = piece});
      }
    }
    for (int island : builder.islands()) builder.island_all_gather(island, shared[island]);
  }
}

void hierarchical(PlanBuilder& builder) {
  const int64_t block_bytes = builder.input(0, builder.spec().count).bytes();
  spread(builder, Routes::by_uplink(builder.topology(), block_bytes));
}

void nested(PlanBuilder& builder) { spread(builder, Routes::by_zone(builder.topology())); }

}  // namespace

std::vector<Algorithm> all_gather_algorithms() {
  return {
      {Collective::all_gather, "flat", "one step of the native engine", one_island, flat, true},
      {Collective::all_gather, "hierarchical",
       "each island imports foreign blocks once and shares them", at_least_two_islands,
       hierarchical, true},
      {Collective::all_gather, "hierarchical_nested",
       "each zone imports foreign blocks once, and passes them on", several_zones, nested, true,
       route_hops},
  };
}

}  // namespace hetcomm
