#pragma once

#include <string>
#include <vector>

#include "bootstrap/rail_probe.h"
#include "codec/codec.h"
#include "topology/topology.h"

namespace hetcomm {

// Warns of each port that lacks a setting, and of each island that passes over a better network.
// Names the ranks, the host and the remedy. For rank 0 at set-up; each warning comes once in a
// process. Thread-safe.
void warn_of_networks(const Topology& topology, const std::string& group);

// Warns of an island over several hosts, between which a lossy codec encodes nothing. For rank 0 at
// set-up; comes once in a process. Thread-safe.
void warn_of_codec(const Topology& topology, const CodecSetting& codec, const std::string& group);

// Warns of each rail that failed its probe. Names both ends, the reason and the remedy. For rank 0
// at set-up; each warning comes once in a process. Thread-safe.
void warn_of_rails(const Topology& topology, const std::vector<FailedRail>& failed,
                   const std::string& group);

}  // namespace hetcomm
