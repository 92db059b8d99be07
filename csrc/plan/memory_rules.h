#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"
#include "topology/topology.h"

namespace hetcomm {

// Steps that ask for memory out of reach of their performer: the first errors, at most `most`.
// Island steps and a device's own steps work in device memory. Messages work in staging at a staged
// end, else in device memory. A rank on host memory has no staging. `plans`: one for each rank.
std::vector<std::string> misplaced(const Topology& topology, const std::vector<Plan>& plans,
                                   size_t most);

}  // namespace hetcomm
