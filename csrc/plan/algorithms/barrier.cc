#include "plan/algorithms/algorithms.h"

namespace hetcomm {
namespace {

// No rank has the sum before every rank has added to it. The value of the element does not matter.
void direct(PlanBuilder& builder) {
  const Range token = builder.scratch_on_all(1);
  all_reduce_direct(builder, token, token);
}

void doubling(PlanBuilder& builder) {
  const Range token = builder.scratch_on_all(1);
  all_reduce_doubling(builder, token, token);
}

}  // namespace

std::vector<Algorithm> barrier_algorithms() {
  return {
      {Collective::barrier, "direct", "an all_reduce of one element of scratch", any, direct},
      {Collective::barrier, "doubling", "such an all_reduce by hierarchical_doubling",
       at_least_three_islands, doubling, false, doubling_hops},
  };
}

}  // namespace hetcomm
