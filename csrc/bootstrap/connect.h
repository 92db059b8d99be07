#pragma once

#include <vector>

#include "bootstrap/agreement.h"
#include "bootstrap/connect_info.h"
#include "bootstrap/engines.h"
#include "bootstrap/group.h"
#include "transport/link_offers.h"

namespace hetcomm {

// Makes what other ranks need in order to connect, and probes the rails of this host. Throws Error.
ConnectInfo make_connect_info(Group& group, const IslandSetup& setup, const Deadline& deadline,
                              IslandKey& key);

// Replaces the topology by one without the rails that failed. It is equal on all ranks.
void leave_out_failed_rails(Group& group, const std::vector<ConnectInfo>& infos);

// Opens the engine of the island, the paths to all ranks and the control connections. Throws Error.
void connect(Group& group, const IslandSetup& setup, const std::vector<ConnectInfo>& infos,
             const Deadline& deadline);

// Brings both ends of every link to the same offer, see Link::offer(). `all`: by rank.
void agree_on_offers(Group& group, Agreement& agreement, std::vector<LinkOffers> all);

}  // namespace hetcomm
