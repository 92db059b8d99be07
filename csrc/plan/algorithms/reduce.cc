#include "plan/algorithms/algorithms.h"
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
        chunks_(chunk_count(topology_, spec_, spec_.count)),
        cut_(segments(topology_, spec_.count, spec_.dtype)) {
    for (const Segment& segment : cut_) {
      const int64_t room = largest_part(segment.count, chunks_, spec_.dtype);
      Scratch scratch{{}, std::vector<std::vector<Slots>>(order_.size())};
      for (size_t island = 0; island < order_.size(); ++island) {
        scratch.sums.emplace_back(builder_, segment.owners[island], room, chunks_);
        if (successor_[island] < 0) continue;
        const int to = successor_[island];
        scratch.received[to].emplace_back(builder_, segment.owners[to], room, chunks_);
        if (builder_.lossy()) {
          scratch.encoded.emplace_back(builder_, segment.owners[island], room, chunks_);
        }
      }
      scratch_.push_back(std::move(scratch));
    }
  }

  void build() {
    pipeline(
        chunks_,
        [this](int chunk) {
          for (int island : order_) reduce_scatter(island, chunk);
          for (size_t s = 0; s < cut_.size(); ++s) combine(s, chunk);
        },
        [this](int chunk) { pass_to_root(chunk); });
  }

 private:
  // Scratch of the owners of one segment, by island.
  struct Scratch {
    std::vector<Slots> sums;                   // the island's own sum
    std::vector<std::vector<Slots>> received;  // sums from other islands
    std::vector<Slots> encoded;                // with a codec, by islands that send
  };

  Range piece(size_t s, int chunk) const { return part_of(cut_[s], chunk, chunks_, spec_.dtype); }

  // The island's own sum at the owner. In an island of one member it is the input.
  Range own(size_t s, int island, int chunk) const {
    if (topology_.island(island).size() == 1) return in(Space::input, piece(s, chunk));
    if (cut_[s].owners[island] == spec_.root) return piece(s, chunk);
    return scratch_[s].sums[island].at(chunk, piece(s, chunk).count);
  }

  // The sum of the island's own sum and the received ones, at the owner.
  Range total(size_t s, int island, int chunk) const {
    if (cut_[s].owners[island] == spec_.root) return piece(s, chunk);
    const std::vector<Slots>& received = scratch_[s].received[island];
    // Encoded elements are not replaced by their sum.
    if (received.empty() || builder_.lossy()) return own(s, island, chunk);
    return received[0].at(chunk, piece(s, chunk).count);
  }

  void reduce_scatter(int island, int chunk) {
    if (topology_.island(island).size() == 1) return;
    std::vector<Piece> pieces;
    for (size_t s = 0; s < cut_.size(); ++s) {
      pieces.push_back({.to = cut_[s].owners[island],
                        .source = in(Space::input, piece(s, chunk)),
                        .target = own(s, island, chunk)});
    }
    builder_.island_reduce_scatter(island, pieces);
  }

  // Sends the island's total to `target` of the next owner; returns what arrives there.
  Range send(size_t s, int island, int chunk, const Range& target) {
    const int owner = cut_[s].owners[island], to = cut_[s].owners[successor_[island]];
    const Range sum = total(s, island, chunk);
    if (!builder_.rounds(cut_[s].owners, target)) {
      builder_.transfer(owner, sum, to, target);
      return target;
    }
    const auto rank = std::count_if(successor_.begin(), successor_.begin() + island,
                                    [](int next) { return next >= 0; });
    const Range out = builder_.encoded(scratch_[s].encoded[rank].at(chunk, sum.count));
    const Range in = builder_.encoded(target);
    builder_.encode(owner, sum, out, piece(s, chunk));
    builder_.transfer(owner, out, to, in);
    return in;
  }

  void combine(size_t s, int chunk) {
    std::vector<std::vector<Range>> sources(order_.size());
    for (int island : order_) {
      const int owner = cut_[s].owners[island];
      sources[island].push_back(own(s, island, chunk));
      builder_.reduce(owner, sources[island], total(s, island, chunk));
      const int to = successor_[island];
      if (to < 0) continue;
      const Range received =
          scratch_[s].received[to][sources[to].size()].at(chunk, piece(s, chunk).count);
      sources[to].push_back(send(s, island, chunk, received));
    }
  }

  void pass_to_root(int chunk) {
    const int island = order_.back();
    std::vector<Piece> pieces;
    for (size_t s = 0; s < cut_.size(); ++s) {
      const int owner = cut_[s].owners[island];
      if (owner == spec_.root) continue;
      pieces.push_back({.from = owner,
                        .to = spec_.root,
                        .source = total(s, island, chunk),
                        .target = piece(s, chunk)});
    }
    builder_.island_all_to_all(island, pieces);
  }

  PlanBuilder& builder_;
  const Topology& topology_ = builder_.topology();
  const Spec& spec_ = builder_.spec();
  const std::vector<int> order_, successor_;
  const int chunks_;
  const std::vector<Segment> cut_;
  std::vector<Scratch> scratch_;  // by segment
};

std::vector<int> order_to_root(const PlanBuilder& builder) {
  std::vector<int> order = island_order(builder.topology());
  const int last = builder.topology().island_of(builder.spec().root);
  std::rotate(order.begin(), std::find(order.begin(), order.end(), last) + 1, order.end());
  return order;
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

}  // namespace

std::vector<Algorithm> reduce_algorithms() {
  return {
      {Collective::reduce, "flat", "one step of the native engine", one_island, flat, true},
      {Collective::reduce, "hierarchical_direct",
       "every island sends its sums to the root's island", any, hierarchical_direct, true},
      {Collective::reduce, "hierarchical_chain", "sums pass from island to island to the root's",
       at_least_three_islands, hierarchical_chain},
  };
}

}  // namespace hetcomm
