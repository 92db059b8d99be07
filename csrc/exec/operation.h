#pragma once

#include <cstdint>
#include <string>

#include "island/island.h"
#include "plan/plan.h"

namespace hetcomm {

// What a run is for its user. A collective has a call descriptor, a message has a tag.
struct Operation {
  CallDescriptor call;
  uint32_t user_tag = 0;
};

// Describes one call of a collective. `history`: the hash of all earlier calls.
CallDescriptor make_descriptor(const Spec& spec, uint64_t sequence, uint64_t history);

// Folds a call descriptor into the hash that travels in tags.
uint64_t hash(const CallDescriptor& call);

// "all_reduce sum float32 x 4 #7", "send float32 x 4 with rank 1 tag 5".
std::string describe(const Spec& spec, const Operation& operation);

// Of a recorded call, as above. Takes any bytes of a peer.
std::string describe(const CallDescriptor& call, uint32_t user_tag);

// "all_reduce sum float32 x 1024 (history 3fa9)". Different histories of equal calls mean that
// earlier calls differed. Takes any bytes of a peer.
std::string describe_call(const CallDescriptor& call);

}  // namespace hetcomm
