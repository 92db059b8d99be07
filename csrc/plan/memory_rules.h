#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"
#include "topology/topology.h"

namespace hetcomm {

// Finds steps in memory that their performer cannot reach: returns the first errors, at most
// `most`. Island steps and a device's own steps use device memory. Messages use staging at a staged
// end, else device memory. A rank on host memory has no staging. `plans`: one for each rank.
std::vector<std::string> misplaced(const Topology& topology, const std::vector<Plan>& plans,
                                   size_t most);

}  // namespace hetcomm
