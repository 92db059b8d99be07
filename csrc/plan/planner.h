#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "codec/codec.h"
#include "plan/builder.h"
#include "plan/codec_choice.h"
#include "plan/cost.h"
#include "plan/estimate.h"
#include "plan/plan.h"
#include "plan/table.h"
#include "topology/topology.h"

namespace hetcomm {

// One way to do a collective. A new one is a function and a row in a file of algorithms/.
struct Algorithm {
  Collective collective;
  const char* name;
  const char* summary;                                   // one line for `hetcomm explain`
  std::string (*why_not)(const Topology&, const Spec&);  // empty if applicable, but for a codec
  void (*build)(PlanBuilder&);
  bool rounds = false;  // can have a lossy codec; sums are rounded once on each way
  Hops (*hops)(const Topology&) = [](const Topology&) { return Hops{}; };
};
const std::vector<Algorithm>& algorithms();

// A pure function (topology, spec, table, parameters) -> plan, with a cache. Thread-safe.
class Planner {
 public:
  // Throws Error(invalid_argument) if the table names an algorithm that does not exist.
  // `codec` encodes long messages.
  Planner(std::shared_ptr<const Topology> topology, SelectionTable table,
          CostParameters parameters = {}, CodecSetting codec = {});

  // This rank's plan, nearly always from the cache. Throws Error(invalid_argument) for an
  // impossible spec: a root out of range, an operation without this dtype, a negative count, or an
  // algorithm of the table that does not apply to this topology.
  std::shared_ptr<const Plan> plan(const Spec& spec, int rank);
  // The plan by the same algorithm without an automatic codec. Both give the same bits.
  std::shared_ptr<const Plan> plain_plan(const Spec& spec, int rank);
  // Whether the automatic codec of the spec's size class still is faster, with what was measured.
  // True if nothing was measured. A pure function of topology, parameters, spec and figures.
  bool codec_pays(const Spec& spec, const CodecFigures& figures) const;
  // The size class of the spec, for people: "all_reduce of float32 from 32 MiB". Two classes of
  // automatic codecs have different texts.
  std::string class_name(const Spec& spec) const;
  // The plans of all ranks, for the checker, the cost model and explain.
  std::vector<Plan> plan_all(const Spec& spec) const;
  std::vector<Plan> plan_all(const Spec& spec, const Algorithm& algorithm) const;

  // The candidates with their predicted time or the reason for their rejection, and the choice. The
  // prediction is for the spec rounded down to a power of two in bytes, float32 and root 0.
  struct Candidate {
    const Algorithm* algorithm;
    std::string rejected;  // empty if it was priced
    Cost cost;
    const Codec* codec;  // the faster choice for this algorithm; null for none
  };
  struct Choice {
    const Algorithm* algorithm;
    const Codec* codec;
    std::string why;
    std::vector<Candidate> candidates;
  };
  Choice choose(const Spec& spec) const;

  // What the spec itself is predicted to cost.
  Cost cost(const Spec& spec) const;
  Cost cost(const Spec& spec, const Algorithm& algorithm) const;
  bool replays() const { return replays(parameters_); }  // the plans of all ranks, for a cost
  // The ranks from whose plans the cost follows: all, or of many ranks some of each kind.
  std::vector<Representative> representatives(const Spec& spec) const;

  // Why the algorithm does not apply to the spec with its codec; empty if it does.
  std::string why_not(const Algorithm& algorithm, const Spec& spec) const;
  // Of the call, or of the group, at the level of this topology.
  CodecSetting codec_for(const Spec& spec) const;

  const Topology& topology() const { return *topology_; }
  const SelectionTable& table() const { return table_; }

 private:
  struct Key {
    Spec spec;
    int rank;
    bool plain = false;  // without an automatic codec
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const { return hash(key.spec) ^ key.rank << 1 ^ key.plain; }
  };

  struct Selection {
    const Algorithm* algorithm;
    const Codec* codec;
  };
  std::shared_ptr<const Plan> cached(const Key& key);
  // These throw Error(invalid_argument); see planner_refusals.cc.
  [[noreturn]] static void refuse(const Spec& spec, const std::string& why);
  static void expect_all_splits(const Spec& spec);
  void validate(const Spec& spec) const;
  void validate_codec(const Spec& spec) const;
  void validate_codec(const Spec& spec, const Codec& codec) const;
  void expect_float8(const Spec& spec) const;  // in the native libraries
  std::vector<const Algorithm*> applicable(const Spec& spec) const;
  const Algorithm* named(const Spec& spec) const;  // in the table; null for auto
  Selection select(const Spec& spec) const;
  Selection select(const Spec& spec, const Algorithm& algorithm) const;  // not of the table
  Selection unpriced(const Spec& spec) const;
  Dtype priced_dtype(const Spec& spec) const;
  Candidate price(const Algorithm& algorithm, const Spec& spec) const;
  bool replays(const CostParameters& parameters) const;  // the plans of all ranks
  Cost cost(const Spec& spec, const Selection& selection, const CostParameters& parameters) const;
  std::vector<Plan> build_all(const Spec& spec, const Selection& selection) const;

  std::shared_ptr<const Topology> topology_;
  SelectionTable table_;
  CostParameters parameters_;
  CodecSetting codec_;
  mutable std::mutex mutex_;  // guards the members below
  std::unordered_map<Key, std::shared_ptr<const Plan>, KeyHash> cache_;
  size_t cached_bytes_ = 0;
  // The numbers are log2 of the bytes, and that of the codec setting. The algorithm is the one
  // that the table names, or null.
  using SizeClass = std::tuple<Collective, int, Dtype, const Algorithm*, uint32_t>;
  mutable std::map<SizeClass, Selection> selected_;
};

}  // namespace hetcomm
