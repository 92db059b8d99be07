#pragma once

#include <vector>

#include "topology/topology.h"
#include "transport/registry.h"

namespace hetcomm {

// The facts of a rank's end of the link to `peer`, without its addresses: those on which ranks
// agree.
LinkEnd link_end(const Topology& topology, int rank, int peer);
// Those of a rank's ends of all its links, by peer.
std::vector<LinkEnd> link_ends(const Topology& topology, int rank);

std::vector<NetworkDevice> network_devices(const std::vector<Nic>& nics);

}  // namespace hetcomm
