#pragma once

#include <vector>

#include "plan/plan.h"
#include "plan/symbolic.h"

namespace hetcomm {

// The meaning of a collective in symbols: the inputs of all ranks, and the outputs that must come
// of them. Each logical byte has an index. For all_reduce, reduce, broadcast, reduce_scatter and
// scatter it is the byte's offset in the whole buffer, for other collectives its offset in the
// concatenated inputs of all ranks.
struct Contributions {
  static constexpr int every = -2;  // the term of a wanted sum over all ranks, in any order

  std::vector<Extents> inputs;   // for each rank
  std::vector<Extents> outputs;  // for each rank; other bytes of an output may hold anything
};

Contributions contributions(const Spec& spec, int size);

}  // namespace hetcomm
