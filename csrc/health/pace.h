#pragma once

#include <functional>
#include <optional>
#include <string>

#include "health/group_state.h"

namespace hetcomm {

// A rank that comes last to many collectives.
struct Straggler {
  int rank = 0;
  int times_last = 0, compared = 0;  // calls
  uint64_t newest = 0;               // the number of the newest call
  int64_t delay = 0;  // ns after the next rank, on average of the calls to which it came last
  std::vector<int> last_by_rank;  // of each rank: the calls to which it came last
  bool persistent = false;        // late enough and often enough for a warning

  std::string text(const GroupState& state) const;
};

// From the calls that all ranks have in common; nothing if they are too few.
std::optional<Straggler> straggler(const GroupState& state);

// The predicted ns of a collective; 0 if unknown.
using Predicted = std::function<int64_t(Collective, Dtype, int64_t count)>;
// The collective that is slowest beside its prediction, if it is far slower, and the slowest path;
// empty if none is.
std::string slow_collective(const GroupState& state, const Predicted& predicted);

}  // namespace hetcomm
