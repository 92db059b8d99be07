#pragma once

#include <vector>

#include "plan/plan.h"

namespace hetcomm {

// What follows from the `after` of these steps.
Schedule schedule_of(const std::vector<Step>& steps);

}  // namespace hetcomm
