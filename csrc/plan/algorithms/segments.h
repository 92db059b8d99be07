#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "plan/builder.h"

namespace hetcomm {

class Routes;

// A contiguous element range that has exactly one owner in every island.
struct Segment {
  int64_t offset = 0;
  int64_t count = 0;
  std::vector<int> owners;  // ranks, by island
  // Of block_segments():
  int block_of = -1;  // the rank of its block
  int part = -1;      // number in its block
};

// A buffer of `count` elements as chunks, so that wire and islands work at once. Chunks are
// contiguous ranges of one length. The last one has 0.5 to 1.5 of it. Each is cut into segments at
// the shard boundaries of all islands. Equal chunks have one cut. Shards are equal, or weighted by
// uplink. So the pieces of an island step are adjacent, as native libraries want them. With
// feedback chunk c has part c of every segment of the buffer: a rank's residuals are one range.
class Chunks {
 public:
  // A message has one of `parts` parts of a segment. Of a chunk in flight a rank keeps
  // `kept` / `of` times its shard in scratch.
  Chunks(const PlanBuilder& builder, int64_t count, int64_t parts, int64_t kept, int64_t of = 1);

  int number() const { return number_; }
  // Tells the builder; returns the number of chunks to record.
  int divide(PlanBuilder& builder) const {
    const bool by_length = number_ > 1 && length_ > 0;
    return by_length ? builder.divide(number_, count_, length_)
                     : builder.divide(number_, number_, 1);
  }
  int cuts() const { return static_cast<int>(segments_.size()); }
  int cut_of(int chunk) const { return chunk + 1 < number_ ? 0 : cuts() - 1; }
  int number_with(int cut) const { return cuts() == 1 ? number_ : cut == 0 ? number_ - 1 : 1; }
  // At most (sum of island sizes - islands + 1), in order, none empty.
  const std::vector<Segment>& segments(int cut) const { return segments_[cut]; }
  Range piece(int chunk, const Segment& segment) const;  // in the output
  int64_t largest_piece(const Segment& segment) const;   // the most elements of piece()

 private:
  Dtype dtype_;
  int64_t count_;  // elements of the buffer
  bool in_parts_;  // of the segments of the whole buffer
  int number_;
  int64_t length_ = 0;                          // of a chunk, in elements
  std::vector<std::vector<Segment>> segments_;  // by cut, from the chunk's begin
};

// Cuts n blocks of `count` elements, one for each rank. In its own island a rank owns its whole
// block. Any other island concatenates its foreign blocks and cuts them into a shard for each
// member.
std::vector<Segment> block_segments(const Topology& topology, int64_t count, Dtype dtype);

// Shares [from, to) of the `of` shares of a range. Cuts are at whole cache lines of the buffer.
Range shares_of(const Range& range, int64_t from, int64_t to, int64_t of);
// Part `index` of `parts` nearly equal parts of a segment, in the output.
inline Range part_of(const Segment& segment, int index, int parts, Dtype dtype) {
  const Range range = Range{Space::output, 0, 0, dtype}.part(segment.offset, segment.count);
  return shares_of(range, index, index + 1, parts);
}

// The same elements in another buffer, moved by `shift` bytes.
inline Range in(Space space, const Range& range, int64_t shift = 0) {
  return {space, range.offset + shift, range.count, range.dtype};
}

// The number of chunks of a collective of blocks, of so many segments in all. Chunk c holds part c
// of every segment, so that all owners send at once.
int block_chunks(const PlanBuilder& builder, size_t segments, const Routes& routes);

// Chunks between a step that feeds the wire and the step that waits for the wire. Island steps run
// in order. So the reduce-scatter of chunk c + kWindow comes before the all-gather of chunk c.
inline constexpr int kWindow = 7;
inline constexpr int kSlots = kWindow + 1;

// Calls before(c), which feeds the wire, kWindow chunks ahead of after(c), which waits for the
// wire.
template <typename Before, typename After>
void pipeline(int chunks, const Before& before, const After& after) {
  for (int chunk = 0; chunk < chunks + kWindow; ++chunk) {
    if (chunk < chunks) before(chunk);
    if (chunk >= kWindow) after(chunk - kWindow);
  }
}

// The most elements that shares_of() returns for `shares` shares of a range of `count`.
int64_t largest_share(int64_t count, int64_t shares, int64_t of, Dtype dtype);
// The most elements of one of `parts` parts.
inline int64_t largest_part(int64_t count, int parts, Dtype dtype) {
  return largest_share(count, 1, parts, dtype);
}

// Scratch of one rank for chunks in flight: `count` elements in each of kSlots slots, in each lane.
// Fewer chunks have a slot each. Concurrent messages have different lanes.
class Slots {
 public:
  Slots(PlanBuilder& builder, int rank, int64_t count, int chunks, int lanes = 1);
  Range at(int chunk, int64_t count, int lane = 0) const {
    return room_.part((int64_t{lane} * slots_ + chunk % slots_) * size_, count);
  }

 private:
  int slots_;
  int64_t size_;  // elements of a slot
  Range room_;
};

// Slots of the owners of a segment in the builder's islands. What other owners get has no place.
class OwnerSlots {
 public:
  explicit OwnerSlots(PlanBuilder& builder) : builder_(&builder) {}
  void add(int island, int owner, int64_t count, int chunks, int lanes = 1);
  Range at(int island, int chunk, int64_t count, int lane = 0) const;

 private:
  PlanBuilder* builder_;
  std::map<int, Slots> slots_;
};

// Islands first, first + 1, ...: all, or those of the builder's ranks.
std::vector<int> islands_from(const PlanBuilder& builder, int first, bool all);

// Messages from position i to position i + shift of n in a ring, to or from some positions.
class Shifts {
 public:
  Shifts(int n, std::vector<int> positions) : n_(n), positions_(std::move(positions)) {}
  const std::vector<int>& positions() const { return positions_; }
  std::vector<int> senders(int shift) const;  // ascending
  int receiver(int sender, int shift) const { return (sender + shift) % n_; }

 private:
  int n_;
  std::vector<int> positions_;
};

// The shares of an exchange that k >= 2 islands, or zones of islands, reduce, as 0 and the end of
// each share. The last uplink is then done as early as possible. An island with the share w of N
// elements sends and receives (1 + (k-2) w) N elements, so a slow island has a small share or none.
// No uplink b is busy for longer than max(N / least b, 2 (k-1) N / sum of b). This is the bound of
// all algorithms that send each island's sum out once.
std::vector<int64_t> shares_by_uplink(const std::vector<int64_t>& uplinks);
// Of islands, in MB/s.
std::vector<int64_t> island_uplinks(const Topology& topology);

}  // namespace hetcomm
