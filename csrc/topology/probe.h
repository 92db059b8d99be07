#pragma once

#include <string>

#include "topology/topology.h"

namespace hetcomm {

// Identity of this memory system: boot id, host name, inode of the network namespace and device
// number of /dev/shm. HETCOMM_HOST_ID overrides it. Throws Error(invalid_argument) if one of them
// cannot be read.
std::string host_identity();

// The facts of this process, without its device and libraries.
RankInfo probe_rank();

}  // namespace hetcomm
