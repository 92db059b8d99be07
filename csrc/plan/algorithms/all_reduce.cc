#include <functional>
#include <map>
#include <numeric>

#include "plan/algorithms/algorithms.h"
#include "plan/algorithms/exchange.h"
#include "plan/algorithms/nested.h"
#include "plan/algorithms/orders.h"

namespace hetcomm {
namespace {

// The chunks of an all_reduce, whose owners receive `lanes` messages of their share at a time.
Chunks chunks_of(const PlanBuilder& builder, int64_t count, const std::vector<int64_t>& shares,
                 int lanes, int64_t parts) {
  const int64_t wholes = lanes_of_segments(builder, shares);
  if (shares.empty()) return Chunks(builder, count, parts, lanes + wholes);
  parts = 0;
  int64_t largest = 0;
  for (size_t part = 0; part + 1 < shares.size(); ++part) {
    parts += shares[part] < shares[part + 1];
    largest = std::max(largest, shares[part + 1] - shares[part]);
  }
  return Chunks(builder, count, parts, lanes * largest + wholes * shares.back(), shares.back());
}

// Combines a segment of one chunk across islands: its ranges in the source and in the target.
using Combine = std::function<void(int chunk, const Range& source, const Range& target)>;

// Reduce-scatter in each island, a combination across islands, all-gather in each island; chunked.
// `combine_of` reserves scratch for all chunks with a cut.
void hierarchical(PlanBuilder& builder, const Range& source, const Range& target,
                  const Chunks& chunks,
                  const std::function<Combine(int cut, const Segment&)>& combine_of) {
  const Topology& topology = builder.topology();
  std::vector<std::vector<Combine>> combine(chunks.cuts());  // by cut and segment
  for (int cut = 0; cut < chunks.cuts(); ++cut) {
    for (const Segment& segment : chunks.segments(cut)) {
      combine[cut].push_back(combine_of(cut, segment));
    }
  }
  auto piece_of = [&](const Segment& segment, int chunk, const Range& buffer) {
    return in(buffer.space, chunks.piece(chunk, segment), buffer.offset);
  };
  pipeline(
      chunks.divide(builder),
      [&](int chunk) {
        const int cut = chunks.cut_of(chunk);
        const std::vector<Segment>& segments = chunks.segments(cut);
        for (int island : builder.islands()) {
          if (topology.island(island).size() == 1) continue;
          std::vector<Piece> pieces;
          for (const Segment& segment : segments) {
            pieces.push_back({.to = segment.owners[island],
                              .source = piece_of(segment, chunk, source),
                              .target = piece_of(segment, chunk, target)});
          }
          builder.island_reduce_scatter(island, pieces);
        }
        for (size_t s = 0; s < segments.size(); ++s) {
          if (!builder.builds_any(segments[s].owners)) continue;
          combine[cut][s](chunk, piece_of(segments[s], chunk, source),
                          piece_of(segments[s], chunk, target));
        }
      },
      [&](int chunk) {
        for (int island : builder.islands()) {
          std::vector<Piece> pieces;
          for (const Segment& segment : chunks.segments(chunks.cut_of(chunk))) {
            const Range total = piece_of(segment, chunk, target);
            pieces.push_back({.from = segment.owners[island], .source = total, .target = total});
          }
          builder.island_all_gather(island, pieces);
        }
      });
}

// With one exchange among all owners of a segment. An owner receives a message for each lane. A
// message has at most its island's part of the segment. Without `shares` it may have the whole
// segment, and the median one has one of `parts`.
void hierarchical(PlanBuilder& builder, const Range& source, const Range& target,
                  const std::vector<int64_t>& shares, int lanes, void (*combine)(const Exchange&),
                  int64_t parts = 1) {
  const std::vector<int> order = island_order(builder.topology());
  const Chunks chunks = chunks_of(builder, source.count, shares, lanes, parts);
  hierarchical(builder, source, target, chunks, [&](int cut, const Segment& segment) -> Combine {
    const Scratch scratch(builder, chunks, cut, segment, shares, lanes);
    return [&, scratch](int chunk, const Range& from, const Range& to) {
      combine({.builder = builder,
               .segment = segment,
               .chunk = chunk,
               .shares = shares,
               .source = from,
               .target = to,
               .scratch = scratch,
               .order = order});
    };
  });
}

// Every owner sends its island's sum to all other owners. All of them add up in island order, so
// they get the same bits. With a lossy codec an owner adds what it sends.
void direct(const Exchange& e) {
  const bool rounded = e.rounds(e.target);
  const Shifts shifts(e.islands(), e.built());
  const auto sum_of = [&](int island) {
    return rounded ? e.builder.encoded(e.whole(island, 0)) : e.partial(island);
  };
  std::map<int, std::vector<Range>> sources;  // by island
  for (int island : shifts.positions()) {
    if (rounded) e.encode(island, e.partial(island), sum_of(island), e.target);
    std::vector<Range>& sums = sources[island];
    for (int from = 0; from < e.islands(); ++from) sums.push_back(sum_of(from));
  }
  for (int shift = 1; shift < e.islands(); ++shift) {
    for (int from : shifts.senders(shift)) {
      const int to = shifts.receiver(from, shift);
      const Range memory = e.received(to, shift - 1, e.target.count);
      const Range received = rounded ? e.builder.encoded(memory) : memory;
      e.builder.transfer(e.owner(from), sum_of(from), e.owner(to), received);
      if (e.builds(to)) sources[to][from] = received;
    }
  }
  for (const auto& [island, sums] : sources) e.builder.reduce(e.owner(island), sums, e.target);
}

// Owner i adds up part i, in island order, and sends the total to the other owners. The sizes of
// parts follow from the uplinks. A lossy codec rounds each sum on its way to the reducer, and the
// total on its way back. The reducer uses the total that it sends.
void scatter(const Exchange& e) {
  const Shifts shifts(e.islands(), e.built());
  const auto rounds = [&](int reducer) { return e.rounds(e.part(e.target, reducer)); };
  std::map<int, std::vector<Range>> sources;  // by reducer
  for (int reducer : shifts.positions()) {
    std::vector<Range>& sums = sources[reducer];
    for (int from = 0; from < e.islands(); ++from) sums.push_back(e.partial_part(from, reducer));
  }
  for (int shift = 1; shift < e.islands(); ++shift) {
    for (int from : shifts.senders(shift)) {
      const int reducer = shifts.receiver(from, shift);
      Range sent = e.partial_part(from, reducer);
      Range received = e.received(reducer, shift - 1, sent.count);
      if (rounds(reducer)) {
        const Range sum = sent;
        sent = e.encoded_part(from, 0, reducer);
        received = e.builder.encoded(received);
        e.encode(from, sum, sent, e.part(e.target, reducer));
      }
      e.builder.transfer(e.owner(from), sent, e.owner(reducer), received);
      if (e.builds(reducer)) sources[reducer][from] = received;
    }
  }
  for (const auto& [reducer, sums] : sources) {
    const Range total = e.part(e.target, reducer);
    e.builder.reduce(e.owner(reducer), sums, total);
    if (!rounds(reducer)) continue;
    e.encode(reducer, total, e.encoded_part(reducer, 0, reducer), total);
    e.builder.decode(e.owner(reducer), e.encoded_part(reducer, 0, reducer), total);
  }
  for (int shift = 1; shift < e.islands(); ++shift) {
    for (int reducer : shifts.senders(shift)) {
      const int to = shifts.receiver(reducer, shift);
      const Range total = e.part(e.target, reducer);
      const bool rounded = rounds(reducer);
      const Range sent = rounded ? e.encoded_part(reducer, 0, reducer) : total;
      const Range received = rounded ? e.encoded_part(to, 1, reducer) : total;
      e.builder.transfer(e.owner(reducer), sent, e.owner(to), received);
      if (rounded) e.builder.decode(e.owner(to), received, total);
    }
  }
}

// Ring reduce-scatter, then ring all-gather (Patarasuk and Yuan, 2009) among the owners. Only one
// owner makes the total of a part, so all owners get the same bits.
void ring(const Exchange& e) {
  const int k = e.islands();
  const std::vector<int>& order = e.order;
  std::vector<int> built;
  for (int position = 0; position < k; ++position) {
    if (e.builds(order[position])) built.push_back(position);
  }
  const std::vector<int> senders = Shifts(k, built).senders(1);
  auto hop = [&](int position) { return std::pair(order[position], order[(position + 1) % k]); };
  for (int step = 0; step + 1 < k; ++step) {
    for (int position : senders) {
      const auto [from, to] = hop(position);
      const int p = (position - step + k) % k;
      const Range total = e.part(e.target, p);
      const Range received = e.received(to, step, total.count);
      e.builder.transfer(e.owner(from), step == 0 ? e.partial_part(from, p) : total, e.owner(to),
                         received);
      e.builder.reduce(e.owner(to), {received, e.partial_part(to, p)}, total);
    }
  }
  for (int step = 0; step + 1 < k; ++step) {
    for (int position : senders) {
      const auto [from, to] = hop(position);
      const Range total = e.part(e.target, (position + 1 - step + k) % k);
      e.builder.transfer(e.owner(from), total, e.owner(to), total);
    }
  }
}

Range whole_input(const PlanBuilder& builder) { return builder.input(0, builder.spec().count); }
Range whole_output(const PlanBuilder& builder) { return builder.output(0, builder.spec().count); }

void flat(PlanBuilder& builder) {
  builder.island_all_reduce(0, {{.source = whole_input(builder), .target = whole_output(builder)}});
}

void hierarchical_direct(PlanBuilder& builder) {
  all_reduce_direct(builder, whole_input(builder), whole_output(builder));
}

int other_islands(const PlanBuilder& builder) {
  return static_cast<int>(builder.topology().islands().size()) - 1;
}

void hierarchical_scatter(PlanBuilder& builder) {
  hierarchical(builder, whole_input(builder), whole_output(builder),
               shares_by_uplink(island_uplinks(builder.topology())), other_islands(builder),
               scatter);
}

void hierarchical_ring(PlanBuilder& builder) {
  std::vector<int64_t> equal(builder.topology().islands().size() + 1);
  std::iota(equal.begin(), equal.end(), 0);
  hierarchical(builder, whole_input(builder), whole_output(builder), equal, other_islands(builder),
               ring);
}

void hierarchical_doubling(PlanBuilder& builder) {
  all_reduce_doubling(builder, whole_input(builder), whole_output(builder));
}

void hierarchical_halving(PlanBuilder& builder) {
  const Pairs pairs(other_islands(builder) + 1);
  hierarchical(builder, whole_input(builder), whole_output(builder), {}, pairs.rounds() + 1,
               halving, int64_t{2} << pairs.rounds() / 2);
}

// Exchanges in each zone of islands, then among zones, level by level.
void hierarchical_nested(PlanBuilder& builder) {
  constexpr int64_t kWhole = 1 << 20;
  const ZoneTree tree = zone_tree(builder.topology());
  const Dtype dtype = builder.spec().dtype;
  const ZoneExchanges one(tree, kWhole, dtype);
  const Chunks chunks(builder, builder.spec().count, one.messages_per_whole(kWhole),
                      one.most_scratch(), kWhole);
  std::map<int64_t, ZoneExchanges> known;  // by elements of a segment
  const auto combine_of = [&](int cut, const Segment& segment) -> Combine {
    const ZoneExchanges& exchanges =
        known.try_emplace(segment.count, tree, segment.count, dtype).first->second;
    OwnerSlots slots(builder);
    for (int island : builder.islands()) {
      slots.add(island, segment.owners[island], exchanges.scratch(island), chunks.number_with(cut));
    }
    return [&, slots](int chunk, const Range& source, const Range& target) {
      std::map<int, Range> scratch;
      for (int island : builder.islands()) {
        scratch.emplace(island, slots.at(island, chunk, exchanges.scratch(island)));
      }
      exchanges.combine(builder, segment.owners, source, target, scratch);
    };
  };
  hierarchical(builder, whole_input(builder), whole_output(builder), chunks, combine_of);
}

}  // namespace

void all_reduce_direct(PlanBuilder& builder, const Range& source, const Range& target) {
  hierarchical(builder, source, target, {}, other_islands(builder), direct);
}

void all_reduce_doubling(PlanBuilder& builder, const Range& source, const Range& target) {
  const Pairs pairs(other_islands(builder) + 1);
  hierarchical(builder, source, target, {}, pairs.rounds() + 1, doubling);
}

std::vector<Algorithm> all_reduce_algorithms() {
  return {
      {Collective::all_reduce, "flat", "one step of the native engine", one_island, flat, true},
      {Collective::all_reduce, "hierarchical_direct",
       "owners of a segment exchange island sums directly", at_least_two_islands,
       hierarchical_direct, true},
      {Collective::all_reduce, "hierarchical_ring",
       "island sums travel a ring of the owners of each segment, then the totals do",
       at_least_three_islands, hierarchical_ring, false, ring_hops},
      {Collective::all_reduce, "hierarchical_halving",
       "pairs of owners exchange halves of halves, and then the totals", power_of_two,
       hierarchical_halving, false, halving_hops},
      {Collective::all_reduce, "hierarchical_scatter",
       "owners of a segment each total a part of it, then exchange totals", at_least_three_islands,
       hierarchical_scatter, true, [](const Topology&) { return Hops{2, 2}; }},
      {Collective::all_reduce, "hierarchical_doubling",
       "pairs of owners exchange sums, at twice the distance in each round", at_least_three_islands,
       hierarchical_doubling, false, doubling_hops},
      {Collective::all_reduce, "hierarchical_nested",
       "owners exchange parts and totals in each zone, and these among zones", several_zones,
       hierarchical_nested, false, exchange_hops},
  };
}

}  // namespace hetcomm
