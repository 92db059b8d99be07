#include "plan/algorithms/algorithms.h"
#include "plan/algorithms/segments.h"

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
// A block behind a slow uplink crosses to its relay, which sends the copies.
// The members then share the imported parts. With a lossy codec the own island gets the same
// rounded values.
void hierarchical(PlanBuilder& builder) {
  const Topology& topology = builder.topology();
  const Spec& spec = builder.spec();
  const int64_t block_bytes = builder.input(0, spec.count).bytes();
  const std::vector<int> relays = relays_by_uplink(topology, block_bytes);
  const std::vector<Segment> cut = block_segments(topology, spec.count, spec.dtype);
  const int chunks = block_chunks(builder, cut.size(), relays);
  const int recorded = builder.divide(chunks, chunks, 1);
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
      const int relay = relays[own_island];
      const bool sends =
          builder.builds(own) || (relay >= 0 && builder.builds(cut[s].owners[relay]));
      for (int island : islands_from(builder, relay < 0 ? own_island : relay, sends)) {
        if (island == own_island) continue;
        const int importer = cut[s].owners[island];
        const bool first = relay < 0 || island == relay;
        builder.transfer(first ? own : cut[s].owners[relay], first ? block : at(relay), importer,
                         at(island));
        if (rounded) builder.decode(importer, at(island), piece);
        shared[island].push_back({.from = importer, .source = piece, .target = piece});
      }
    }
    for (int island : builder.islands()) builder.island_all_gather(island, shared[island]);
  }
}

}  // namespace

std::vector<Algorithm> all_gather_algorithms() {
  return {
      {Collective::all_gather, "flat", "one step of the native engine", one_island, flat, true},
      {Collective::all_gather, "hierarchical",
       "each island imports foreign blocks once and shares them", at_least_two_islands,
       hierarchical, true},
  };
}

}  // namespace hetcomm
