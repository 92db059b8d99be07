#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "plan/plan.h"
#include "topology/topology.h"

namespace hetcomm {

// Algorithms say what moves where, not through which memory. Their steps read and write device
// memory. lower() turns the steps of a rank with device memory into steps that its links and
// engines can carry out. Messages with staged peers go from and into staging. Copies move values
// between device memory and staging where a step needs them. Values are written back to device
// memory before island steps and copies within device memory, and the output in the end.
struct Lowered {
  int64_t scratch_bytes = 0;  // of device memory
  int64_t staging_bytes = 0;
};
// `steps` are in serial order; `emit` is called in serial order, for all steps there are then.
Lowered lower(const Topology& topology, const Spec& spec, int rank, const std::vector<Step>& steps,
              const std::function<void(Step)>& emit);

// A staged message is cut into parts, so that copies and wire overlap; so are reductions of what
// came in parts. Elements of each part of `count`, but for the last; alike on both ends.
int64_t staged_part(int64_t count, Dtype dtype);

// Calls visit(offset, count) for each of those parts, once if there is nothing.
template <typename Visit>
void for_parts(int64_t count, Dtype dtype, const Visit& visit) {
  const int64_t size = staged_part(count, dtype);
  int64_t offset = 0;
  do {
    visit(offset, std::min(size, count - offset));
    offset += size;
  } while (offset < count);
}

// Whether what a rank reduces may come through staging.
bool through_staging(const Topology& topology, int rank);

}  // namespace hetcomm
