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
// The members then share the imported parts.
void hierarchical(PlanBuilder& builder) {
  const Topology& topology = builder.topology();
  const Spec& spec = builder.spec();
  const int islands = static_cast<int>(topology.islands().size());
  const int chunks = chunk_count(topology, spec, spec.count * topology.size());
  const int64_t block_bytes = builder.input(0, spec.count).bytes();
  const std::vector<Segment> cut = block_segments(topology, spec.count, spec.dtype);
  for (int island = 0; island < islands; ++island) share_own_blocks(builder, island);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    std::vector<std::vector<Piece>> imported(islands);
    for (const Segment& segment : cut) {
      const Range piece = part_of(segment, chunk, chunks, spec.dtype);
      const Range block = in(Space::input, piece, -segment.block_of * block_bytes);
      const int own_island = topology.island_of(segment.block_of);
      for (int shift = 1; shift < islands; ++shift) {
        const int island = (own_island + shift) % islands;
        const int importer = segment.owners[island];
        builder.transfer(segment.block_of, block, importer, piece);
        imported[island].push_back({.from = importer, .source = piece, .target = piece});
      }
    }
    for (int island = 0; island < islands; ++island) {
      builder.island_all_gather(island, imported[island]);
    }
  }
}

}  // namespace

std::vector<Algorithm> all_gather_algorithms() {
  return {
      {Collective::all_gather, "flat", "one step of the native engine", one_island, flat},
      {Collective::all_gather, "hierarchical",
       "each island imports foreign blocks once and shares them", at_least_two_islands,
       hierarchical},
  };
}

}  // namespace hetcomm
