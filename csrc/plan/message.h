#pragma once

#include "plan/plan.h"
#include "topology/topology.h"

namespace hetcomm {

// What `rank` does to send to `peer` or to receive from it. `direction` is Collective::send or
// recv; the spec of the plan has the peer as root, the input of a send or the output of a recv is
// the message. Where an end is staged, the message is cut alike at both ends: its parts are one
// step each, numbered by `tag`, and must be posted in plan order.
Plan message_plan(const Topology& topology, int rank, Collective direction, int peer, Dtype dtype,
                  int64_t count);

}  // namespace hetcomm
