#include <numeric>

#include "plan/algorithms/algorithms.h"
#include "plan/algorithms/segments.h"

namespace hetcomm {
namespace {

// Scratch of the size of a segment: with a lossy codec for what an owner sends, and for the totals
// that it receives for parts.
int whole_lanes(const PlanBuilder& builder, const std::vector<int64_t>& shares) {
  if (!builder.lossy()) return 0;
  return shares.empty() ? 1 : 2;
}

// The chunks of an all_reduce, whose owners receive islands - 1 messages of their share at a time.
Chunks chunks_of(const PlanBuilder& builder, int64_t count, const std::vector<int64_t>& shares) {
  const auto lanes = static_cast<int64_t>(builder.topology().islands().size()) - 1;
  const int64_t wholes = whole_lanes(builder, shares);
  if (shares.empty()) return Chunks(builder, count, 1, lanes + wholes);
  int64_t parts = 0, largest = 0;
  for (size_t part = 0; part + 1 < shares.size(); ++part) {
    parts += shares[part] < shares[part + 1];
    largest = std::max(largest, shares[part + 1] - shares[part]);
  }
  return Chunks(builder, count, parts, lanes * largest + wholes * shares.back(), shares.back());
}

// Scratch of the owners for all chunks with one cut.
class Scratch {
 public:
  Scratch(PlanBuilder& builder, const Chunks& chunks, int cut, const std::vector<int64_t>& shares)
      : lanes_(static_cast<int>(builder.topology().islands().size()) - 1),
        whole_lanes_(whole_lanes(builder, shares)) {
    for (const Segment& segment : chunks.segments(cut)) {
      std::vector<Slots>& slots = slots_.emplace_back();
      if (!builder.builds_any(segment.owners)) continue;
      for (size_t island = 0; island < segment.owners.size(); ++island) {
        const int64_t whole = chunks.largest_piece(segment);
        const int64_t room = shares.empty()
                                 ? whole
                                 : largest_share(whole, shares[island + 1] - shares[island],
                                                 shares.back(), builder.spec().dtype);
        for (int lane = 0; lane < lanes_ + whole_lanes_; ++lane) {
          slots.emplace_back(builder, segment.owners[island], lane < lanes_ ? room : whole,
                             chunks.number_with(cut));
        }
      }
    }
  }
  // For the messages of a chunk. Concurrent messages have different lanes.
  const Slots& message(size_t segment, int island, int lane) const {
    return slots_[segment][island * (lanes_ + whole_lanes_) + lane];
  }
  // Of the size of the segment; see whole_lanes().
  const Slots& whole(size_t segment, int island, int lane) const {
    return message(segment, island, lanes_ + lane);
  }

 private:
  const int lanes_, whole_lanes_;
  std::vector<std::vector<Slots>> slots_;  // by segment; by island and lane
};

// One segment of one chunk, ready to be combined across islands.
struct Exchange {
  PlanBuilder& builder;
  const Segment& segment;
  int chunk;
  const std::vector<int64_t>& shares;  // ends of the parts that the islands reduce
  std::vector<Range> partial;          // by island: the island's sum at its owner
  Range target;                        // the total, at every owner
  const Scratch& scratch;
  size_t index;  // of the segment

  int islands() const { return static_cast<int>(partial.size()); }
  int owner(int island) const { return segment.owners[island]; }
  Range part(const Range& range, int index) const {
    return shares_of(range, shares[index], shares[index + 1], shares.back());
  }
  // A part of `memory` of the size of the target.
  Range place(const Range& memory, int index) const {
    const Range wanted = part(target, index);
    return in(memory.space, wanted, memory.offset - target.offset);
  }
  // A part of an island's sum, cut like the target.
  Range partial_part(int island, int index) const { return place(partial[island], index); }
  // Memory of an owner for a message of so many elements.
  Range received(int island, int lane, int64_t count) const {
    return scratch.message(index, island, lane).at(chunk, count);
  }
  Range whole(int island, int lane) const {
    return scratch.whole(index, island, lane).at(chunk, target.count);
  }

  bool rounds(const Range& elements) const { return builder.rounds(segment.owners, elements); }
  // Encodes an island's sum or total of these elements of the target, once for all receivers.
  void encode(int island, const Range& sum, const Range& encoded, const Range& elements) const {
    builder.encode(owner(island), sum, encoded, elements);
  }
  Range encoded_part(int island, int lane, int index) const {
    return builder.encoded(place(whole(island, lane), index));
  }
};

// Reduce-scatter in each island, `combine` across islands, all-gather in each island; chunked. An
// owner receives islands - 1 messages in each exchange. Each message has its island's part of the
// segment, or the whole segment without `shares`.
void hierarchical(PlanBuilder& builder, const Range& source, const Range& target,
                  const std::vector<int64_t>& shares, void (*combine)(const Exchange&)) {
  const Topology& topology = builder.topology();
  const int islands = static_cast<int>(topology.islands().size());
  const Chunks chunks = chunks_of(builder, source.count, shares);
  std::vector<Scratch> scratch;  // by cut
  for (int cut = 0; cut < chunks.cuts(); ++cut) scratch.emplace_back(builder, chunks, cut, shares);
  auto piece_of = [&](const Segment& segment, int chunk, const Range& buffer) {
    return in(buffer.space, chunks.piece(chunk, segment), buffer.offset);
  };
  pipeline(
      chunks.number(),
      [&](int chunk) {
        const int cut = chunks.cut_of(chunk);
        const std::vector<Segment>& segments = chunks.segments(cut);
        for (int island = 0; island < islands; ++island) {
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
          Exchange exchange{.builder = builder,
                            .segment = segments[s],
                            .chunk = chunk,
                            .shares = shares,
                            .partial = {},
                            .target = piece_of(segments[s], chunk, target),
                            .scratch = scratch[cut],
                            .index = s};
          for (int island = 0; island < islands; ++island) {
            const bool alone = topology.island(island).size() == 1;
            exchange.partial.push_back(piece_of(segments[s], chunk, alone ? source : target));
          }
          combine(exchange);
        }
      },
      [&](int chunk) {
        for (int island = 0; island < islands; ++island) {
          std::vector<Piece> pieces;
          for (const Segment& segment : chunks.segments(chunks.cut_of(chunk))) {
            const Range total = piece_of(segment, chunk, target);
            pieces.push_back({.from = segment.owners[island], .source = total, .target = total});
          }
          builder.island_all_gather(island, pieces);
        }
      });
}

// Every owner sends its island's sum to all other owners. All of them add up in island order, so
// they get the same bits. With a lossy codec an owner adds what it sends.
void direct(const Exchange& e) {
  const int k = e.islands();
  const bool rounded = e.rounds(e.target);
  std::vector<Range> sums = e.partial;
  for (int island = 0; rounded && island < k; ++island) {
    sums[island] = e.builder.encoded(e.whole(island, 0));
    e.encode(island, e.partial[island], sums[island], e.target);
  }
  std::vector<std::vector<Range>> sources(k, sums);
  for (int shift = 1; shift < k; ++shift) {
    for (int from = 0; from < k; ++from) {
      const int to = (from + shift) % k;
      const Range received = e.received(to, shift - 1, e.target.count);
      sources[to][from] = rounded ? e.builder.encoded(received) : received;
      e.builder.transfer(e.owner(from), sums[from], e.owner(to), sources[to][from]);
    }
  }
  for (int island = 0; island < k; ++island) {
    e.builder.reduce(e.owner(island), sources[island], e.target);
  }
}

// Owner i adds up part i, in island order, and sends the total to the other owners. The sizes of
// parts follow from the uplinks. A lossy codec rounds each sum on its way to the reducer, and the
// total on its way back. The reducer uses the total that it sends.
void scatter(const Exchange& e) {
  const int k = e.islands();
  std::vector<std::vector<Range>> sources(k);
  std::vector<bool> rounded;  // by reducer
  for (int reducer = 0; reducer < k; ++reducer) {
    for (int from = 0; from < k; ++from) sources[reducer].push_back(e.partial_part(from, reducer));
    rounded.push_back(e.rounds(e.part(e.target, reducer)));
  }
  for (int shift = 1; shift < k; ++shift) {
    for (int from = 0; from < k; ++from) {
      const int reducer = (from + shift) % k;
      Range sent = sources[reducer][from];
      Range received = e.received(reducer, shift - 1, sent.count);
      if (rounded[reducer]) {
        const Range sum = sent;
        sent = e.encoded_part(from, 0, reducer);
        received = e.builder.encoded(received);
        e.encode(from, sum, sent, e.part(e.target, reducer));
      }
      e.builder.transfer(e.owner(from), sent, e.owner(reducer), received);
      sources[reducer][from] = received;
    }
  }
  for (int reducer = 0; reducer < k; ++reducer) {
    const Range total = e.part(e.target, reducer);
    e.builder.reduce(e.owner(reducer), sources[reducer], total);
    if (!rounded[reducer]) continue;
    e.encode(reducer, total, e.encoded_part(reducer, 0, reducer), total);
    e.builder.decode(e.owner(reducer), e.encoded_part(reducer, 0, reducer), total);
  }
  for (int shift = 1; shift < k; ++shift) {
    for (int reducer = 0; reducer < k; ++reducer) {
      const int to = (reducer + shift) % k;
      const Range total = e.part(e.target, reducer);
      const Range sent = rounded[reducer] ? e.encoded_part(reducer, 0, reducer) : total;
      const Range received = rounded[reducer] ? e.encoded_part(to, 1, reducer) : total;
      e.builder.transfer(e.owner(reducer), sent, e.owner(to), received);
      if (rounded[reducer]) e.builder.decode(e.owner(to), received, total);
    }
  }
}

// Ring reduce-scatter, then ring all-gather (Patarasuk and Yuan, 2009) among the owners. Only one
// owner makes the total of a part, so all owners get the same bits.
void ring(const Exchange& e) {
  const int k = e.islands();
  const std::vector<int> order = island_order(e.builder.topology());
  auto hop = [&](int position) { return std::pair(order[position], order[(position + 1) % k]); };
  for (int step = 0; step + 1 < k; ++step) {
    for (int position = 0; position < k; ++position) {
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
    for (int position = 0; position < k; ++position) {
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

void hierarchical_scatter(PlanBuilder& builder) {
  hierarchical(builder, whole_input(builder), whole_output(builder),
               shares_by_uplink(builder.topology()), scatter);
}

void hierarchical_ring(PlanBuilder& builder) {
  std::vector<int64_t> equal(builder.topology().islands().size() + 1);
  std::iota(equal.begin(), equal.end(), 0);
  hierarchical(builder, whole_input(builder), whole_output(builder), equal, ring);
}

}  // namespace

void all_reduce_direct(PlanBuilder& builder, const Range& source, const Range& target) {
  hierarchical(builder, source, target, {}, direct);
}

std::vector<Algorithm> all_reduce_algorithms() {
  return {
      {Collective::all_reduce, "flat", "one step of the native engine", one_island, flat, true},
      {Collective::all_reduce, "hierarchical_direct",
       "owners of a segment exchange island sums directly", at_least_two_islands,
       hierarchical_direct, true},
      {Collective::all_reduce, "hierarchical_scatter",
       "owners of a segment each total a part of it, then exchange totals", at_least_three_islands,
       hierarchical_scatter, true},
      {Collective::all_reduce, "hierarchical_ring",
       "island sums travel a ring of the owners of each segment, then the totals do",
       at_least_three_islands, hierarchical_ring},
  };
}

}  // namespace hetcomm
