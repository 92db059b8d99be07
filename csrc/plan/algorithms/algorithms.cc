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

// The lower edge of a size class, so that all of one are alike.
constexpr int64_t kLongBlocks = 1 << 20;

std::string short_blocks(const Topology& topology, const Spec& spec) {
  if (!spec.splits.empty()) return "needs blocks of one size; a rank knows only its own splits";
  if (largest_buffer(spec, topology.size()) >= kLongBlocks) {
    return "is for buffers below 1 MiB; longer blocks are worth a message each";
  }
  return two_islands(topology, spec);
}

// To price the messages of so many pairs would take seconds.
constexpr int kManyRanks = 256;

std::string few_pairs(const Topology& topology, const Spec& spec) {
  if (topology.size() <= kManyRanks || !short_blocks(topology, spec).empty()) return "";
  return "has a message for each pair of ranks; short blocks of more than 256 ranks are aggregated";
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
