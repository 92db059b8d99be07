#include "plan/algorithms/algorithms.h"
#include "plan/algorithms/orders.h"
#include "plan/algorithms/segments.h"

namespace hetcomm {
namespace {

// Reduce-scatter in each island. The sums cross to the root's island, where the owners pass the
// totals to the root; chunked. Island i sends to island successor[i]; the root's island has -1.
// `order` visits an island after all islands that send to it.
class Reduction {
 public:
  Reduction(PlanBuilder& builder, std::vector<int> order, std::vector<int> successor)
      : builder_(builder),
        order_(std::move(order)),
        successor_(std::move(successor)),
        chunks_(builder, spec_.count, 1, static_cast<int64_t>(order_.size()) + builder.lossy()) {
    for (int to : successor_) {
      if (to >= 0) ++senders_[to];
    }
    std::erase_if(visited_, [this](int island) {
      const int to = successor_[island];
      return !builder_.builds_island(island) && !(to >= 0 && builder_.builds_island(to));
    });
    for (int cut = 0; cut < chunks_.cuts(); ++cut) {
      scratch_.emplace_back();
      for (const Segment& segment : chunks_.segments(cut)) reserve(cut, segment);
    }
  }

  void build() {
    pipeline(
        chunks_.divide(builder_),
        [this](int chunk) {
          for (int island : builder_.islands()) reduce_scatter(island, chunk);
          for (size_t s = 0; s < segments(chunk).size(); ++s) combine(at(chunk, s));
        },
        [this](int chunk) { pass_to_root(chunk); });
  }

 private:
  // Scratch of the owners of one segment.
  struct Scratch {
    OwnerSlots sums;      // the island's own sum
    OwnerSlots received;  // sums from other islands, in lanes
    OwnerSlots encoded;   // with a codec, at islands that send
  };
  // One segment of one chunk.
  struct Place {
    int chunk;
    Range piece;
    const std::vector<int>& owners;
    const Scratch& scratch;
  };

  void reserve(int cut, const Segment& segment) {
    const int chunks = chunks_.number_with(cut);
    const int64_t room = chunks_.largest_piece(segment);
    Scratch scratch{OwnerSlots(builder_), OwnerSlots(builder_), OwnerSlots(builder_)};
    for (int island : builder_.islands()) {
      const int owner = segment.owners[island];
      scratch.sums.add(island, owner, room, chunks);
      scratch.received.add(island, owner, room, chunks, senders_[island]);
      if (builder_.lossy() && successor_[island] >= 0) {
        scratch.encoded.add(island, owner, room, chunks);
      }
    }
    scratch_[cut].push_back(std::move(scratch));
  }

  const std::vector<Segment>& segments(int chunk) const {
    return chunks_.segments(chunks_.cut_of(chunk));
  }

  Place at(int chunk, size_t s) const {
    const Segment& segment = segments(chunk)[s];
    return {chunk, chunks_.piece(chunk, segment), segment.owners,
            scratch_[chunks_.cut_of(chunk)][s]};
  }

  // The island's own sum at the owner. In an island of one member it is the input.
  Range own(const Place& place, int island) const {
    if (topology_.island(island).size() == 1) return in(Space::input, place.piece);
    if (place.owners[island] == spec_.root) return place.piece;
    return place.scratch.sums.at(island, place.chunk, place.piece.count);
  }

  // The sum of the island's own sum and the received ones, at the owner.
  Range total(const Place& place, int island) const {
    if (place.owners[island] == spec_.root) return place.piece;
    // Encoded elements are not replaced by their sum.
    if (senders_[island] == 0 || builder_.lossy()) return own(place, island);
    return place.scratch.received.at(island, place.chunk, place.piece.count);
  }

  void reduce_scatter(int island, int chunk) {
    if (topology_.island(island).size() == 1) return;
    std::vector<Piece> pieces;
    for (size_t s = 0; s < segments(chunk).size(); ++s) {
      const Place place = at(chunk, s);
      pieces.push_back({.to = place.owners[island],
                        .source = in(Space::input, place.piece),
                        .target = own(place, island)});
    }
    builder_.island_reduce_scatter(island, pieces);
  }

  // Sends the island's total to `target` of the next owner; returns what arrives there.
  Range send(const Place& place, int island, const Range& target) {
    const int owner = place.owners[island], to = place.owners[successor_[island]];
    const Range sum = total(place, island);
    if (!builder_.rounds(place.owners, target)) {
      builder_.transfer(owner, sum, to, target);
      return target;
    }
    const Range out = builder_.encoded(place.scratch.encoded.at(island, place.chunk, sum.count));
    const Range in = builder_.encoded(target);
    builder_.encode(owner, sum, out, place.piece);
    builder_.transfer(owner, out, to, in);
    return in;
  }

  void combine(const Place& place) {
    std::map<int, std::vector<Range>> sources;  // by island
    for (int island : visited_) {
      const int owner = place.owners[island];
      sources[island].push_back(own(place, island));
      builder_.reduce(owner, sources[island], total(place, island));
      const int to = successor_[island];
      if (to < 0) continue;
      const auto lane = static_cast<int>(sources[to].size());
      const Range received = place.scratch.received.at(to, place.chunk, place.piece.count, lane);
      sources[to].push_back(send(place, island, received));
    }
  }

  void pass_to_root(int chunk) {
    const int island = order_.back();
    std::vector<Piece> pieces;
    for (size_t s = 0; s < segments(chunk).size(); ++s) {
      const Place place = at(chunk, s);
      const int owner = place.owners[island];
      if (owner == spec_.root) continue;
      pieces.push_back(
          {.from = owner, .to = spec_.root, .source = total(place, island), .target = place.piece});
    }
    builder_.island_all_to_all(island, pieces);
  }

  PlanBuilder& builder_;
  const Topology& topology_ = builder_.topology();
  const Spec& spec_ = builder_.spec();
  const std::vector<int> order_, successor_;
  std::vector<int> senders_ = std::vector<int>(order_.size());  // by island: their number
  std::vector<int> visited_ = order_;  // islands that exchange messages with the builder's
  const Chunks chunks_;
  std::vector<std::vector<Scratch>> scratch_;  // by cut and segment
};

std::vector<int> order_to_root(const PlanBuilder& builder) {
  const Topology& topology = builder.topology();
  return order_to(topology, topology.island_of(builder.spec().root));
}

void flat(PlanBuilder& builder) {
  const int64_t count = builder.spec().count;
  builder.island_reduce_scatter(0, {{.to = builder.spec().root,
                                     .source = builder.input(0, count),
                                     .target = builder.output(0, count)}});
}

void hierarchical_direct(PlanBuilder& builder) {
  const std::vector<int> order = order_to_root(builder);
  std::vector<int> successor(order.size(), order.back());
  successor[order.back()] = -1;
  Reduction(builder, order, successor).build();
}

void hierarchical_chain(PlanBuilder& builder) {
  const std::vector<int> order = order_to_root(builder);
  std::vector<int> successor(order.size(), -1);
  for (size_t i = 0; i + 1 < order.size(); ++i) successor[order[i]] = order[i + 1];
  Reduction(builder, order, successor).build();
}

void hierarchical_tree(PlanBuilder& builder) {
  const std::vector<int> order = order_to_root(builder);
  std::vector<int> successor(order.size(), -1);
  const size_t last = order.size() - 1;
  for (size_t i = 1; i <= last; ++i) successor[order[last - i]] = order[last - tree_parent(i)];
  Reduction(builder, order, successor).build();
}

void hierarchical_nested(PlanBuilder& builder) {
  const ZoneWalk walk(builder.topology(), builder.topology().island_of(builder.spec().root));
  Reduction(builder, {walk.order.rbegin(), walk.order.rend()}, walk.parent).build();
}

}  // namespace

std::vector<Algorithm> reduce_algorithms() {
  return {
      {Collective::reduce, "flat", "one step of the native engine", one_island, flat, true},
      {Collective::reduce, "hierarchical_direct",
       "every island sends its sums to the root's island", any, hierarchical_direct, true},
      {Collective::reduce, "hierarchical_chain", "sums pass from island to island to the root's",
       at_least_three_islands, hierarchical_chain, false, chain_hops},
      {Collective::reduce, "hierarchical_tree", "sums pass up a binomial tree of islands",
       at_least_three_islands, hierarchical_tree, false, tree_hops},
      {Collective::reduce, "hierarchical_nested", "sums leave each zone once, by trees",
       several_zones, hierarchical_nested, false, walk_hops},
  };
}

}  // namespace hetcomm
