#pragma once

#include <vector>

#include "plan/plan.h"

namespace hetcomm {

// The schedule that follows from the dependencies. `members`: the ranks of the island.
Schedule schedule_of(const std::vector<Step>& steps, const std::vector<int>& members);

}  // namespace hetcomm
