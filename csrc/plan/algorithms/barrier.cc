#include <numeric>

#include "plan/algorithms/algorithms.h"

namespace hetcomm {
namespace {

// No rank has the sum before every rank has added to it, so none leaves before all have come. What
// the element holds does not matter.
void direct(PlanBuilder& builder) {
  std::vector<int> everyone(builder.topology().size());
  std::iota(everyone.begin(), everyone.end(), 0);
  const Range token = builder.scratch(everyone, 1);
  all_reduce_direct(builder, token, token);
}

}  // namespace

std::vector<Algorithm> barrier_algorithms() {
  return {
      {Collective::barrier, "direct", "an all_reduce of one element of scratch", any, direct},
  };
}

}  // namespace hetcomm
