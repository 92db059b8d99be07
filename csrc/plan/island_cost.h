#pragma once

#include <cstdint>

#include "plan/cost.h"
#include "plan/profile.h"

namespace hetcomm {

// ns of one of profiled_collectives() in an island alone. bytes: of its largest buffer. With a
// profile this is the measured time. The time of an island that was not measured is in proportion
// to the time of the most similar one.
int64_t island_time(const CostParameters& parameters, const IslandSize& size, Collective collective,
                    int64_t bytes);

// ns of an island step of the island of `rank`. Uneven pieces are priced between two collectives:
// in one all members have equally much, in the other a single member has everything.
int64_t island_time(const CostParameters& parameters, const Topology& topology, int rank,
                    const Step& step);

}  // namespace hetcomm
