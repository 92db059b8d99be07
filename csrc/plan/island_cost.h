#pragma once

#include <cstdint>

#include "plan/cost.h"
#include "plan/profile.h"

namespace hetcomm {

IslandSize island_size(const Topology& topology, int rank);

// ns of one of profiled_collectives(), of an island alone. bytes: of its largest buffer. As it was
// measured, if there is a profile; of an island that was not, in proportion to the one most like
// it.
int64_t island_time(const CostParameters& parameters, const IslandSize& size, Collective collective,
                    int64_t bytes);

// ns of an island step of the island of `rank`. What is shared out unevenly is priced between the
// collective whose members all have as much and the one where a single member has everything.
int64_t island_time(const CostParameters& parameters, const Topology& topology, int rank,
                    const Step& step);

}  // namespace hetcomm
