#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/algorithms/segments.h"

namespace hetcomm {

// The ways of blocks in an all_gather, from the island of a block to all others. Sums of a
// reduce_scatter take them backwards. Islands receive a block from its own island, or from an
// island that passes it on.
class Routes {
 public:
  static Routes direct(const Topology& topology) { return Routes(topology); }
  // An island with a slow uplink would send each block k - 1 times while it receives as much. In
  // calls in a row one direction then idles whenever an island waits for another one. So an island
  // of at least twice the bandwidth passes the block on to all others, unless that keeps its own
  // uplink busy for more than half of the step. Blocks of less than a millisecond go direct.
  static Routes by_uplink(const Topology& topology, int64_t block_bytes);
  // A block enters each zone once, by one of its islands, which passes the block on. Islands take
  // turns at the blocks.
  static Routes by_zone(const Topology& topology);

  struct Hop {
    int from, to;  // islands
    int depth;     // of `to`: hops from the block's island
  };
  // Of a segment of a block: to the builder's islands, and from its ranks. Ascending in depth.
  std::vector<Hop> hops(const PlanBuilder& builder, const Segment& segment) const;
  // Whether the island passes the segment on, after it has received it.
  bool passes_on(const Segment& segment, int island) const;
  // The number of blocks of which an island keeps others' sums at a time, before its members share
  // this work.
  int64_t kept_blocks(int island, bool sums) const;
  bool relays() const { return !relays_.empty(); }

 private:
  explicit Routes(const Topology& topology) : topology_(&topology) {}
  struct Place {
    int parent, depth;
    int level;  // of the zone that the block enters here; levels() for none, -1 for its own island
  };
  Place place_of(const Segment& segment, int island) const;
  std::vector<int> children(const Segment& segment, int island) const;
  int entry(int level, int zone, const Segment& segment) const;
  int zone_of(int level, int island) const { return topology_->zone_of_island(level, island); }
  int relay_of(int island) const { return relays_.empty() ? -1 : relays_[island]; }
  int levels() const { return static_cast<int>(members_.size()); }
  int islands() const { return static_cast<int>(topology_->islands().size()); }

  const Topology* topology_;
  std::vector<int> relays_;                             // by island; -1: sends its blocks itself
  std::vector<std::vector<std::vector<int>>> members_;  // islands by level and zone
  std::vector<std::vector<size_t>> turns_;            // by level and rank: its number, zone by zone
  std::vector<std::vector<std::vector<int>>> inner_;  // zones of the next level, likewise
};

}  // namespace hetcomm
