#pragma once

#include <vector>

#include "plan/plan.h"
#include "plan/symbolic.h"

namespace hetcomm {

// What a collective means, in symbols: where every rank's elements start and where they must end.
// A logical byte has one index: its place in the whole buffer for all_reduce, reduce, broadcast,
// reduce_scatter and scatter; its place in the concatenated inputs of all ranks for the others.
struct Contributions {
  static constexpr int every = -2;  // the term of a wanted run: summed over all ranks, in any order

  std::vector<std::vector<Run>> inputs;   // for each rank
  std::vector<std::vector<Run>> outputs;  // for each rank; only what is listed is wanted
};

Contributions contributions(const Spec& spec, int size);

}  // namespace hetcomm
