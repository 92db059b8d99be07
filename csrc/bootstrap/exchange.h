#pragma once

#include <memory>
#include <vector>

#include "bootstrap/agreement.h"
#include "bootstrap/group.h"
#include "bootstrap/member.h"
#include "bootstrap/store.h"

namespace hetcomm {

// The result of the first stage of set-up.
struct Exchange {
  std::vector<Member> members;             // by rank
  std::shared_ptr<const Profile> profile;  // of speeds; null without one
};

// The key of a rank's record.
std::string member_key(int rank);

// Probes this rank, publishes its record, and reads the records of all other ranks. Gives the group
// its executor, device, health, rail listeners and topology. Throws Error if settings differ
// between ranks, or if no engine can serve an island.
Exchange exchange_members(Store& store, const Agreement& agreement, const BootstrapOptions& options,
                          Group& group);

}  // namespace hetcomm
