#pragma once

#include <memory>

#include "bootstrap/group.h"
#include "bootstrap/store.h"

namespace hetcomm {

// Sets up a group with all its ranks. Blocks until every rank has come, at most for the timeout.
// Throws Error on every rank if any rank cannot take part. The store serves this call only.
std::unique_ptr<Group> bootstrap(Store& store, const BootstrapOptions& options);

}  // namespace hetcomm
