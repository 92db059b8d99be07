#pragma once

#include "plan/plan.h"
#include "topology/topology.h"

namespace hetcomm {

// The plan of `rank` for a message to `peer` (Collective::send) or from `peer` (recv). The spec of
// the plan has the peer as root. The message is the input of a send or the output of a recv. If an
// end is staged, both ends cut the message into the same parts. Each part is one step, numbered by
// `tag`. The parts must be posted in plan order.
Plan message_plan(const Topology& topology, int rank, Collective direction, int peer, Dtype dtype,
                  int64_t count);

}  // namespace hetcomm
