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

// Probes this rank, publishes what others need to know, and reads the same of all other ranks.
// Gives the group its executor, device, health, rail listeners and topology. Throws Error where
// settings differ between ranks or no engine can serve an island.
Exchange exchange_members(Store& store, const Agreement& agreement, const BootstrapOptions& options,
                          Group& group);

}  // namespace hetcomm
