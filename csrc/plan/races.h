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

// Finds pairs of accesses to common bytes, at least one of them a write, that have no order by
// `after` or by island steps. Returns the first pairs, at most `most`. The later step comes second.
std::vector<std::pair<Access, Access>> races(const Plan& plan, std::vector<Access> accesses,
                                             size_t most);

}  // namespace hetcomm
