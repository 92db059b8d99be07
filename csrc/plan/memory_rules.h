#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"
#include "topology/topology.h"

namespace hetcomm {

// What of the plans, one for each rank, asks for memory that the one who performs the step cannot
// reach: island steps and reductions by a device work at home, messages with a staged end in
// staging at that end and the others at home, a rank on host memory has no staging. The first
// errors, at most `most`.
std::vector<std::string> misplaced(const Topology& topology, const std::vector<Plan>& plans,
                                   size_t most);

}  // namespace hetcomm
