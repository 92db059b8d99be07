#pragma once

#include <memory>

#include "bootstrap/group.h"
#include "bootstrap/store.h"

namespace hetcomm {

// Sets up a group with all its ranks. Blocks until all ranks have come, at most for the timeout.
// Throws Error on all ranks if one rank cannot take part. Uses the store during this call
// only, unless the store stands still.
std::unique_ptr<Group> bootstrap(std::shared_ptr<Store> store, const BootstrapOptions& options);

}  // namespace hetcomm
