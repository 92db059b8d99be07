#include "plan/algorithms/algorithms.h"

namespace hetcomm {
namespace {

std::string any(const Topology&, const Spec&) { return ""; }

std::string one_island(const Topology& topology, const Spec&) {
  if (topology.islands().size() == 1) return "";
  return "needs one island; there are " + std::to_string(topology.islands().size());
}

std::string two_islands(const Topology& topology, const Spec&) {
  if (topology.islands().size() >= 2) return "";
  return "needs two islands or more; the one that there is serves itself in one step";
}

std::string three_islands(const Topology& topology, const Spec&) {
  if (topology.islands().size() >= 3) return "";
  return "needs three islands or more; there are " + std::to_string(topology.islands().size());
}

std::string equal_blocks(const Topology& topology, const Spec& spec) {
  if (spec.splits.empty()) return two_islands(topology, spec);
  return "needs blocks of one size; a rank knows only its own splits";
}

}  // namespace

const std::vector<Algorithm>& algorithms() {
  static const std::vector<Algorithm> rows = {
#define X(collective, name, applicability, summary) \
  {Collective::collective, #name, summary, applicability, collective##_##name},
      HETCOMM_ALGORITHMS(X)
#undef X
  };
  return rows;
}

}  // namespace hetcomm
