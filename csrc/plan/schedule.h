#pragma once

#include <vector>

#include "plan/plan.h"

namespace hetcomm {

// What follows from the `after` of these steps. `members`: the ranks of the island.
Schedule schedule_of(const std::vector<Step>& steps, const std::vector<int>& members);

}  // namespace hetcomm
