#include "plan/message.h"

#include "plan/builder.h"

namespace hetcomm {

Plan message_plan(const Topology& topology, int rank, Collective direction, int peer, Dtype dtype,
                  int64_t count) {
  const Spec spec{.collective = direction, .dtype = dtype, .root = peer, .count = count};
  const bool sends = direction == Collective::send;
  PlanBuilder builder(topology, spec, {rank});
  builder.transfer(sends ? rank : peer, builder.input(0, count), sends ? peer : rank,
                   builder.output(0, count), true);
  return builder.take(rank, "");
}

}  // namespace hetcomm
