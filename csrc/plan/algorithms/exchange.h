#pragma once

#include <bit>
#include <vector>

#include "plan/algorithms/algorithms.h"
#include "plan/algorithms/segments.h"

namespace hetcomm {

// Scratch of the size of a segment: with a lossy codec for what an owner sends, and for the totals
// that it receives for parts.
int lanes_of_segments(const PlanBuilder& builder, const std::vector<int64_t>& shares);

// Scratch of the owners of one segment, for all chunks with its cut.
struct Scratch {
  OwnerSlots messages;  // received ones
  OwnerSlots wholes;    // of the size of the segment; see lanes_of_segments()

  // `lanes`: messages that an owner receives at a time.
  Scratch(PlanBuilder& builder, const Chunks& chunks, int cut, const Segment& segment,
          const std::vector<int64_t>& shares, int lanes);
};

// One segment of one chunk, ready to be combined across islands.
struct Exchange {
  PlanBuilder& builder;
  const Segment& segment;
  int chunk;
  const std::vector<int64_t>& shares;  // ends of the parts that the islands reduce
  Range source, target;                // the total is for the target, at every owner
  const Scratch& scratch;
  const std::vector<int>& order;  // of the islands in a ring

  int islands() const { return static_cast<int>(segment.owners.size()); }
  int owner(int island) const { return segment.owners[island]; }
  bool builds(int island) const { return builder.builds(owner(island)); }
  // Islands whose owners' steps are recorded.
  std::vector<int> built() const {
    std::vector<int> built = builder.islands();
    std::erase_if(built, [this](int island) { return !builds(island); });
    return built;
  }
  // The island's sum at its owner.
  Range partial(int island) const {
    return builder.topology().island(island).size() == 1 ? source : target;
  }
  Range part(const Range& range, int index) const {
    return shares_of(range, shares[index], shares[index + 1], shares.back());
  }
  // Shares [from, to) of the `of` shares of `memory`, which has the size of the target.
  Range place(const Range& memory, int64_t from, int64_t to, int64_t of) const {
    const Range wanted = shares_of(target, from, to, of);
    return in(memory.space, wanted, memory.offset - target.offset);
  }
  // The part of an island.
  Range place(const Range& memory, int index) const {
    return place(memory, shares[index], shares[index + 1], shares.back());
  }
  // A part of an island's sum, cut like the target.
  Range partial_part(int island, int index) const { return place(partial(island), index); }
  // Memory of an owner for a message of so many elements.
  Range received(int island, int lane, int64_t count) const {
    return scratch.messages.at(island, chunk, count, lane);
  }
  Range whole(int island, int lane) const {
    return scratch.wholes.at(island, chunk, target.count, lane);
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

// Islands as a power of two of places, whose numbers differ in one bit in a pair. An extra island
// shares the place of its neighbour.
class Pairs {
 public:
  explicit Pairs(int islands)
      : places_(static_cast<int>(std::bit_floor(static_cast<unsigned>(islands)))),
        extra_(islands - places_) {}
  int places() const { return places_; }
  int rounds() const { return std::countr_zero(static_cast<unsigned>(places_)); }
  // Islands 2 i and 2 i + 1 share place i, for as many i.
  int extra() const { return extra_; }
  int island(int place) const { return place < extra_ ? 2 * place : place + extra_; }

 private:
  int places_, extra_;
};

// Ways to combine the sums of the islands, so that all owners have the total.
void doubling(const Exchange& exchange);
void halving(const Exchange& exchange);

}  // namespace hetcomm
