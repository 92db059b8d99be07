#pragma once

#include "plan/planner.h"

namespace hetcomm {

// X(collective, name, applicability, summary): one row per algorithm; of equally fast ones the
// earlier is chosen. The function <collective>_<name>, in the file of its collective, emits the
// steps. Applicability is one of the functions of algorithms.cc.
#define HETCOMM_ALGORITHMS(X)                                                                   \
  X(all_reduce, flat, one_island, "one step of the native engine")                              \
  X(all_reduce, hierarchical_direct, two_islands,                                               \
    "owners of a segment exchange island sums directly")                                        \
  X(all_reduce, hierarchical_scatter, three_islands,                                            \
    "owners of a segment each total a part of it, then exchange totals")                        \
  X(all_reduce, hierarchical_ring, three_islands,                                               \
    "island sums travel a ring of the owners of each segment, then the totals do")              \
  X(broadcast, flat, one_island, "one step of the native engine")                               \
  X(broadcast, hierarchical_direct, two_islands,                                                \
    "the root's island sends each segment to every island")                                     \
  X(broadcast, hierarchical_chain, three_islands, "each island passes segments on to the next") \
  X(reduce, flat, one_island, "one step of the native engine")                                  \
  X(reduce, hierarchical_direct, any, "every island sends its sums to the root's island")       \
  X(reduce, hierarchical_chain, three_islands, "sums pass from island to island to the root's") \
  X(all_gather, flat, one_island, "one step of the native engine")                              \
  X(all_gather, hierarchical, two_islands,                                                      \
    "each island imports foreign blocks once and shares them")                                  \
  X(reduce_scatter, flat, one_island, "one step of the native engine")                          \
  X(reduce_scatter, hierarchical, two_islands,                                                  \
    "each island sums foreign blocks and exports them once")                                    \
  X(all_to_all, direct, few_pairs, "native inside islands, one message per pair between them")  \
  X(all_to_all, aggregated, short_blocks,                                                       \
    "each island collects what it has for a foreign rank, and sends it in one message")         \
  X(gather, direct, any, "native inside the root's island, one message per foreign rank")       \
  X(scatter, direct, any, "native inside the root's island, one message per foreign rank")      \
  X(barrier, direct, any, "an all_reduce of one element of scratch")

#define X(collective, name, applicability, summary) void collective##_##name(PlanBuilder& builder);
HETCOMM_ALGORITHMS(X)
#undef X

// The all_reduce of `source` into `target`, the same ranges on every rank, by direct exchange.
void all_reduce_direct(PlanBuilder& builder, const Range& source, const Range& target);

}  // namespace hetcomm
