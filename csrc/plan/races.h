#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "plan/plan.h"

namespace hetcomm {

// A step of one rank reads or writes bytes [begin, end) of a buffer.
struct Access {
  int buffer;  // number of the memory: in place, input and output have one number
  int64_t begin, end;
  int step;
  int part;  // of the step: a write may cover exactly the bytes that its own part reads
  bool write;
};

// Finds unordered pairs of accesses to common bytes with at least one write: neither `after` nor
// the order of island steps orders them. Returns the first pairs, at most `most`; the later step of
// a pair comes second.
std::vector<std::pair<Access, Access>> races(const Plan& plan, std::vector<Access> accesses,
                                             size_t most);

}  // namespace hetcomm
