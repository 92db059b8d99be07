#pragma once

#include <bit>
#include <cstddef>
#include <vector>

#include "topology/topology.h"

namespace hetcomm {

// The order in which rings and chains visit islands: zone by zone at each level, the best connected
// first, islands of one host next to each other.
std::vector<int> island_order(const Topology& topology);
// Rotated at each level, so that an island is the first or the last one of its zone, and its zone
// the first or last zone.
std::vector<int> order_from(const Topology& topology, int island);
std::vector<int> order_to(const Topology& topology, int island);
// The place of the parent of a place > 0 in a binomial tree from place 0. In round r the first 2^r
// places reach as many others.
inline size_t tree_parent(size_t place) { return place - std::bit_floor(place); }

// A tree of all islands that enters each zone once: a binomial tree of zones at each level, and of
// islands inside.
struct ZoneWalk {
  ZoneWalk(const Topology& topology, int root);

  std::vector<int> order;   // parents before their children
  std::vector<int> parent;  // by island; -1 of the root

 private:
  void add(const Topology& topology, const std::vector<int>& islands, int level);
};

}  // namespace hetcomm
