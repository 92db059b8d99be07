#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"
#include "topology/topology.h"

namespace hetcomm {

// Proves a set of plans without hardware: runs every rank's plan in one thread over symbolic
// contributions (which ranks are summed into which range). Returns what is wrong, empty if nothing:
// a malformed step (a range outside its buffer, a dependency on a later step), unmatched or
// mismatched sends, island steps that members disagree on, deadlock (with rendezvous sends), two
// unordered steps of a rank that touch the same elements, an element read before anything was
// written to it, a rank counted twice, a wrong or missing result, a clobbered input that must be
// kept, floating-point results that ranks combine in different orders or round in different places,
// memory that the one who performs a step cannot reach. `plans`: one for each rank of the topology,
// in rank order, all of one spec.
std::vector<std::string> check(const Topology& topology, const std::vector<Plan>& plans);

}  // namespace hetcomm
