#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/builder.h"

namespace hetcomm {

// A contiguous element range that has exactly one owner in every island.
struct Segment {
  int64_t offset = 0;
  int64_t count = 0;
  std::vector<int> owners;  // ranks, by island
  int block_of = -1;        // of block_segments: the rank whose block it lies in
};

// Cuts `count` elements at every island's shard boundaries, shards weighted by uplink. At most
// (sum of island sizes - islands + 1) segments, in order, none empty.
std::vector<Segment> segments(const Topology& topology, int64_t count, Dtype dtype);

// Cuts n blocks of `count` elements, one per rank. A block's rank owns all of it in its own island;
// every other island cuts all of its foreign blocks, end to end, into one shard per member.
std::vector<Segment> block_segments(const Topology& topology, int64_t count, Dtype dtype);

// Shares [from, to) of a range that has `of` of them. Cut at whole cache lines of the buffer.
Range shares_of(const Range& range, int64_t from, int64_t to, int64_t of);
// Part `index` of `parts` nearly equal ones: of the output's elements in a segment.
inline Range part_of(const Segment& segment, int index, int parts, Dtype dtype) {
  const Range range = Range{Space::output, 0, 0, dtype}.part(segment.offset, segment.count);
  return shares_of(range, index, index + 1, parts);
}

// The same elements in another buffer, moved by `shift` bytes.
inline Range in(Space space, const Range& range, int64_t shift = 0) {
  return {space, range.offset + shift, range.count, range.dtype};
}

// Chunk c of a collective holds part c of every segment, so that all owners send at once.
int chunk_count(const Topology& topology, const Spec& spec, int64_t count);

// Chunks between an island's reduce-scatter and the wire's answer to it. Island steps run in order,
// so the reduce-scatter of chunk c + kWindow comes before the step that waits for the wire in c.
inline constexpr int kWindow = 7;
inline constexpr int kSlots = kWindow + 1;

// Calls before(c), which feeds the wire, kWindow chunks ahead of after(c), which waits for it.
template <typename Before, typename After>
void pipeline(int chunks, const Before& before, const After& after) {
  for (int chunk = 0; chunk < chunks + kWindow; ++chunk) {
    if (chunk < chunks) before(chunk);
    if (chunk >= kWindow) after(chunk - kWindow);
  }
}

// The most elements that shares_of() gives to `shares` of `of`, of a range of `count`.
int64_t largest_share(int64_t count, int64_t shares, int64_t of, Dtype dtype);
// That one of `parts` gets.
inline int64_t largest_part(int64_t count, int parts, Dtype dtype) {
  return largest_share(count, 1, parts, dtype);
}

// Scratch of one rank for what is in flight: room for `count` elements in each of kSlots chunks.
class Slots {
 public:
  Slots(PlanBuilder& builder, int rank, int64_t count, int chunks);
  Range at(int chunk, int64_t count) const { return room_.part(chunk % kSlots * size_, count); }

 private:
  int64_t size_;  // elements of a slot
  Range room_;
};

// What of an exchange among islands each of them totals, so that the last uplink is done as early
// as can be: an island with the share w of N elements sends and receives (1 + (k-2) w) N. So a slow
// one has less than others, or nothing. For k >= 3; by island, as the ends of their shares after a
// 0. With them no uplink b is busy for longer than max(N / least b, 2 (k-1) N / sum of b), the
// bound of all algorithms that send each island's sum out once.
std::vector<int64_t> shares_by_uplink(const Topology& topology);

// Islands in the order in which rings and chains visit them: the best connected first, those of
// one host next to each other.
std::vector<int> island_order(const Topology& topology);

}  // namespace hetcomm
