#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "plan/builder.h"
#include "plan/cost.h"
#include "plan/plan.h"
#include "plan/table.h"
#include "topology/topology.h"

namespace hetcomm {

// One way to do a collective. A new one is a function and a row in a file of algorithms/.
struct Algorithm {
  Collective collective;
  const char* name;
  const char* summary;                                   // one line for `hetcomm explain`
  std::string (*why_not)(const Topology&, const Spec&);  // empty if applicable
  void (*build)(PlanBuilder&);
};
const std::vector<Algorithm>& algorithms();

// A pure function (topology, spec, table, parameters) -> plan, with a cache. Thread-safe.
class Planner {
 public:
  // Throws Error(invalid_argument) if the table names an algorithm that does not exist.
  Planner(std::shared_ptr<const Topology> topology, SelectionTable table,
          CostParameters parameters = {});

  // This rank's plan, nearly always from the cache. Throws Error(invalid_argument) for an
  // impossible spec: a root out of range, an operation without this dtype, a negative count, or an
  // algorithm of the table that does not apply to this topology.
  std::shared_ptr<const Plan> plan(const Spec& spec, int rank);
  // The plans of all ranks, for the checker, the cost model and explain.
  std::vector<Plan> plan_all(const Spec& spec) const;
  std::vector<Plan> plan_all(const Spec& spec, const Algorithm& algorithm) const;

  // The candidates with their predicted time or the reason for their rejection, and the choice. The
  // prediction is for the spec rounded down to a power of two in bytes, float32 and root 0.
  struct Candidate {
    const Algorithm* algorithm;
    std::string rejected;  // empty if it was priced
    Cost cost;
  };
  struct Choice {
    const Algorithm* algorithm;
    std::string why;
    std::vector<Candidate> candidates;
  };
  Choice choose(const Spec& spec) const;

  const Topology& topology() const { return *topology_; }
  const SelectionTable& table() const { return table_; }

 private:
  struct Key {
    Spec spec;
    int rank;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const { return hash(key.spec) ^ key.rank; }
  };

  void validate(const Spec& spec) const;           // throws Error(invalid_argument)
  void expect_float8(const Spec& spec) const;      // in the native libraries
  const Algorithm* named(const Spec& spec) const;  // in the table; null for auto
  const Algorithm& select(const Spec& spec) const;
  std::vector<Plan> build_all(const Spec& spec, const Algorithm& algorithm) const;

  std::shared_ptr<const Topology> topology_;
  SelectionTable table_;
  CostParameters parameters_;
  mutable std::mutex mutex_;  // guards the members below
  std::unordered_map<Key, std::shared_ptr<const Plan>, KeyHash> cache_;
  mutable std::map<std::pair<Collective, int>, const Algorithm*> selected_;  // by log2 of the bytes
};

}  // namespace hetcomm
