#pragma once

#include <vector>

#include "plan/builder.h"
#include "plan/cost.h"

namespace hetcomm {

// The messages of an algorithm that wait for each other.
struct Hops {
  int in_a_row = 1;  // until the last rank has its first chunk
  int own = 1;       // of these, messages of one rank
};

// A rank that stands for equal ranks of its host.
struct Representative {
  int rank;
  int64_t ranks;  // for which it stands
};

// Ranks of a few hosts: the root's, and of each class with equal facts the first, the last and the
// one with the slowest NICs. Throws Error(invalid_argument) for a profile of another topology.
std::vector<Representative> representatives_of(const Topology& topology, const Spec& spec,
                                               const CostParameters& parameters = {});

// The predicted cost of a collective from the plans of its representatives, of the first chunk
// alone. It is the time of the first chunk, and then the time that the busiest part of a rank or
// host needs for the other chunks.
Cost estimate(const Topology& topology, const std::vector<Plan>& plans,
              const std::vector<Representative>& representatives, const Division& division,
              const Hops& hops, const CostParameters& parameters = {});

}  // namespace hetcomm
