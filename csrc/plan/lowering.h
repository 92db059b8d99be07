#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "plan/plan.h"
#include "topology/topology.h"

namespace hetcomm {

// The steps of algorithms read and write device memory. lower() turns the steps of a rank with
// device memory into steps that its performers can carry out. Messages with staged peers go from
// and into staging. Copies move values between device memory and staging where a step needs a
// value. Values return to device memory before island steps and copies within device memory. The
// output returns in the end.
struct Lowered {
  int64_t scratch_bytes = 0;  // of device memory
  int64_t staging_bytes = 0;
};
// `steps` are in serial order. `emit` is called in serial order for all lowered steps.
Lowered lower(const Topology& topology, const Spec& spec, int rank, const std::vector<Step>& steps,
              const std::function<void(Step)>& emit);

// Staged messages are cut into parts, so that copies and wire overlap. Reductions of such messages
// are cut alike. Returns the elements of each part but the last; both ends get the same number.
int64_t staged_part(int64_t count, Dtype dtype);

// Calls visit(offset, count) for each of these parts; once, with count 0, if there are none.
template <typename Visit>
void for_parts(int64_t count, Dtype dtype, const Visit& visit) {
  const int64_t size = staged_part(count, dtype);
  int64_t offset = 0;
  do {
    visit(offset, std::min(size, count - offset));
    offset += size;
  } while (offset < count);
}

// Whether encoded elements of a rank with a device may be sent from device memory, and received
// there. Without kernels the host encodes. Without loss the host needs the length of a message.
bool sends_from_device(const Topology& topology, int rank, const Codec& codec);

// Whether a rank's reductions of so many bytes may read values that come through staging.
bool through_staging(const Topology& topology, int rank, int64_t bytes);

}  // namespace hetcomm
