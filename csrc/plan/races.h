#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "plan/plan.h"

namespace hetcomm {

// That a step of one rank reads or writes bytes [begin, end) of a buffer.
struct Access {
  int buffer;  // number of the memory: input and output are one when in place
  int64_t begin, end;
  int step;
  int part;  // of the step: a write may cover exactly what its own part reads
  bool write;
};

// The first pairs, at most `most`, of accesses to common bytes, one of them a write, that no
// chain of `after` or of island steps orders. The later step comes second.
std::vector<std::pair<Access, Access>> races(const Plan& plan, std::vector<Access> accesses,
                                             size_t most);

}  // namespace hetcomm
