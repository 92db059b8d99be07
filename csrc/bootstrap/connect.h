#pragma once

#include <string>
#include <vector>

#include "bootstrap/agreement.h"
#include "bootstrap/engines.h"
#include "bootstrap/group.h"
#include "bootstrap/rail_probe.h"
#include "transport/link_offers.h"

namespace hetcomm {

// A rank publishes this record in the second stage, once the topology is known. The other ranks use
// the record to connect.
struct ConnectInfo {
  std::string island_key;  // from the first member of an island, see Engine::make_key
  std::string addresses;   // of transports that only some links need; mostly empty
  std::vector<FailedRail> failed_rails;

  std::string pack() const;
  static ConnectInfo unpack(const std::string& bytes);  // throws Error(invalid_argument)
};

// Connects the control connections, so that the death of a rank during set-up is noticed. Throws
// Error.
void begin_watch(Group& group, const std::vector<Member>& members, const Deadline& deadline);

// Makes this rank's record, and probes the rails and IP paths of this host unless told otherwise.
// Throws Error.
ConnectInfo make_connect_info(Group& group, const IslandSetup& setup, const Deadline& deadline,
                              IslandKey& key, bool probes);

// Replaces the topology by one without the failed rails, the same on all ranks. False if none
// failed.
bool leave_out_failed_rails(Group& group, const std::vector<ConnectInfo>& infos);

// Opens the engine of the island, the paths to all ranks and second control connections. Returns
// once the neighbours have proven the group's key. Throws Error.
void connect(Group& group, const IslandSetup& setup, const std::vector<ConnectInfo>& infos,
             const Deadline& deadline);

// Brings both ends of every link to the same offer, see Link::offer(). `all`: by rank.
void agree_on_offers(Group& group, Agreement& agreement, std::vector<LinkOffers> all);

}  // namespace hetcomm
