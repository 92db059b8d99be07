#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"
#include "topology/topology.h"

namespace hetcomm {

// Proves a set of plans without hardware: executes the plans of all ranks on one thread, on symbols
// of the ranks summed into each range. Returns the first errors; README.md lists the kinds of
// errors. Sends complete only together with their receives. `plans`: one for each rank of the
// topology, in rank order, all of one spec.
std::vector<std::string> check(const Topology& topology, const std::vector<Plan>& plans);

}  // namespace hetcomm
