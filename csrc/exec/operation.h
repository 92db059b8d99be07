#pragma once

#include <cstdint>
#include <string>

#include "island/island.h"
#include "plan/plan.h"

namespace hetcomm {

// What a run is to its user: a collective, which has a number, or a message, which has a tag.
struct Operation {
  CallDescriptor call;
  uint32_t user_tag = 0;  // of a message
};

// Folds a call descriptor into the hash that travels in tags.
uint64_t hash(const CallDescriptor& call);

// "all_reduce sum float32 x 4 #7", "send float32 x 4 with rank 1 tag 5".
std::string describe(const Spec& spec, const Operation& operation);

}  // namespace hetcomm
