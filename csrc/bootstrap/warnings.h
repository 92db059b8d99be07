#pragma once

#include <string>
#include <vector>

#include "bootstrap/rail_probe.h"
#include "topology/topology.h"

namespace hetcomm {

// Logs what makes ranks use a worse network than their machines have: for each port that lacks a
// setting, and for each island that passes a better network over, the ranks, the host and the
// remedy. For rank 0 at set-up; the same is said once in a process. Thread-safe.
void warn_of_networks(const Topology& topology, const std::string& group);

// Likewise, the NICs that could have carried messages together with others if their network joined
// the hosts: both ends, the reason and the remedy.
void warn_of_rails(const Topology& topology, const std::vector<FailedRail>& failed,
                   const std::string& group);

}  // namespace hetcomm
