#pragma once

#include "plan/planner.h"

namespace hetcomm {

// The algorithms of each collective, in the file of its name. Of prices within 0.5 % the
// planner takes the earlier one.
std::vector<Algorithm> all_reduce_algorithms();
std::vector<Algorithm> broadcast_algorithms();
std::vector<Algorithm> reduce_algorithms();
std::vector<Algorithm> all_gather_algorithms();
std::vector<Algorithm> reduce_scatter_algorithms();
std::vector<Algorithm> all_to_all_algorithms();
std::vector<Algorithm> gather_algorithms();
std::vector<Algorithm> scatter_algorithms();
std::vector<Algorithm> barrier_algorithms();

// Reasons why an algorithm does not apply; empty if it does.
std::string any(const Topology& topology, const Spec& spec);
std::string one_island(const Topology& topology, const Spec& spec);
std::string at_least_two_islands(const Topology& topology, const Spec& spec);
std::string at_least_three_islands(const Topology& topology, const Spec& spec);
std::string power_of_two(const Topology& topology, const Spec& spec);   // and at least three
std::string several_zones(const Topology& topology, const Spec& spec);  // no island spans two

// The all_reduce of `source` into `target`, the same ranges on every rank, by direct exchange or by
// recursive doubling.
void all_reduce_direct(PlanBuilder& builder, const Range& source, const Range& target);
void all_reduce_doubling(PlanBuilder& builder, const Range& source, const Range& target);
Hops doubling_hops(const Topology& topology);
Hops halving_hops(const Topology& topology);
Hops ring_hops(const Topology& topology);  // both ways round
Hops chain_hops(const Topology& topology);
Hops tree_hops(const Topology& topology);      // binomial
Hops walk_hops(const Topology& topology);      // trees, zone by zone
Hops route_hops(const Topology& topology);     // zone by zone
Hops exchange_hops(const Topology& topology);  // zone by zone, both ways

}  // namespace hetcomm
