#include "plan/planner.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/config.h"
#include "base/status.h"
#include "base/text.h"

namespace hetcomm {
namespace {

// Programs with ever new sizes must not grow without bound.
constexpr size_t kMostPlans = 1024;
constexpr size_t kMostPlanBytes = 64 << 20;
// Prices that differ by at most one part of so many are taken as equal. With equal prices a ring
// took 239 ms, halving 252 ms and scatter 249 to 281 ms (16 MiB, 8 emulated hosts of 1 Gbit/s).
constexpr int64_t kAlike = 200;

std::string names_for(Collective collective) {
  std::string names;
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective == collective) names += std::string(algorithm.name) + ", ";
  }
  return names + "auto";
}

// Null if there is none of that name.
const Algorithm* find(Collective collective, const std::string& name) {
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective == collective && algorithm.name == name) return &algorithm;
  }
  return nullptr;
}

// All sizes beyond 256 MiB are one class: bandwidth alone decides.
int size_class(const Spec& spec, int size) {
  constexpr int kLastClass = 29;
  const auto bytes = static_cast<uint64_t>(largest_buffer(spec, size));
  return std::min<int>(std::bit_width(bytes), kLastClass);
}

// The spec that is priced for all specs of its size class. So the choice does not depend on the
// order of calls.
Spec representative(const Spec& spec, Dtype dtype, int size) {
  const int bits = size_class(spec, size);
  Spec canonical{.collective = spec.collective, .dtype = dtype, .codec = spec.codec};
  if (bits == 0) return canonical;
  canonical.count = 1;
  const int64_t unit = largest_buffer(canonical, size);
  canonical.count = std::max<int64_t>(1, (int64_t{1} << (bits - 1)) / unit);
  return canonical;
}

std::vector<Plan> build(PlanBuilder& builder, const Algorithm& algorithm,
                        const std::vector<int>& ranks) {
  algorithm.build(builder);
  std::vector<Plan> plans;
  for (int rank : ranks) plans.push_back(builder.take(rank, algorithm.name));
  return plans;
}

size_t memory_of(const Plan& plan) {
  size_t bytes = sizeof plan;
  for (const Step& step : plan.steps) {
    bytes += sizeof step + step.sources.size() * sizeof(Range) +
             step.pieces.size() * (sizeof(Piece) + 2 * sizeof(int)) +
             2 * step.after.size() * sizeof(int);
  }
  return bytes;
}

std::string in_seconds(const Cost& cost) {
  return format_seconds(std::chrono::nanoseconds(cost.total));
}

}  // namespace

Planner::Planner(std::shared_ptr<const Topology> topology, SelectionTable table,
                 CostParameters parameters, CodecSetting codec)
    : topology_(std::move(topology)),
      table_(std::move(table)),
      parameters_(std::move(parameters)),
      codec_(codec) {
  for (const SelectionTable::Row& row : table_.rows()) {
    if (row.algorithm == "auto" || find(row.collective, row.algorithm)) continue;
    throw Error(Code::invalid_argument, std::string("selection table, ") + name(row.collective) +
                                            ": expected one of " + names_for(row.collective) +
                                            "; got \"" + row.algorithm + "\"");
  }
}

std::string Planner::why_not(const Algorithm& algorithm, const Spec& spec) const {
  const std::string reason = algorithm.why_not(*topology_, spec);
  const Codec* const codec = codec_for(spec).codec;
  if (!reason.empty() || algorithm.rounds || !codec || codec->lossless()) return reason;
  return "would round every sum again at each hop with codec " + codec->name();
}

std::vector<const Algorithm*> Planner::applicable(const Spec& spec) const {
  std::vector<const Algorithm*> found;
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective != spec.collective) continue;
    if (why_not(algorithm, spec).empty()) found.push_back(&algorithm);
  }
  return found;
}

// The lossy codec of a group is for sums: other data have no error that later sums make up for.
CodecSetting Planner::codec_for(const Spec& spec) const {
  const bool several_hosts = topology_->hosts().size() > 1;
  const CodecSetting here = (spec.codec.given ? spec.codec : codec_).at(several_hosts);
  if (spec.codec.given || !here.lossy()) return here;
  const bool sums = has_reduction(spec.collective) && can_round(spec);
  return sums && here.codec->encodes(spec.dtype) ? here : CodecSetting();
}

std::shared_ptr<const Plan> Planner::plan(const Spec& spec, int rank) {
  return cached({spec, rank});
}

std::shared_ptr<const Plan> Planner::plain_plan(const Spec& spec, int rank) {
  return cached({spec, rank, true});
}

std::shared_ptr<const Plan> Planner::cached(const Key& key) {
  const auto& [spec, rank, plain] = key;
  {
    std::lock_guard lock(mutex_);
    auto found = cache_.find(key);
    if (found != cache_.end()) return found->second;
  }
  if (rank < 0 || rank >= topology_->size()) {
    refuse(spec, "expected a rank from 0 to " + std::to_string(topology_->size() - 1) + "; got " +
                     std::to_string(rank));
  }
  validate(spec);
  if (spec.splits_rank >= 0 && spec.splits_rank != rank) {
    refuse(spec, "expected the splits of rank " + std::to_string(rank) + "; got those of rank " +
                     std::to_string(spec.splits_rank));
  }
  const auto [algorithm, chosen] = select(spec);
  const bool automatic = chosen && codec_for(spec).automatic;
  PlanBuilder builder(*topology_, spec, {rank}, automatic && plain ? nullptr : chosen);
  Plan built = std::move(build(builder, *algorithm, {rank}).front());
  built.auto_codec = automatic && !plain;
  auto plan = std::make_shared<const Plan>(std::move(built));
  if (!spec.splits.empty()) return plan;  // the same splits hardly ever come again, and are large
  std::lock_guard lock(mutex_);
  const size_t bytes = memory_of(*plan);
  if (cache_.size() >= kMostPlans || cached_bytes_ + bytes > kMostPlanBytes) {
    cache_.clear();
    cached_bytes_ = 0;
  }
  const auto [known, is_new] = cache_.emplace(key, plan);
  if (is_new) cached_bytes_ += bytes;
  return known->second;
}

bool Planner::codec_pays(const Spec& spec, const CodecFigures& figures) const {
  if (figures.plain == 0) return true;
  const Selection chosen = select(spec);
  const CostParameters measured = with_figures(parameters_, figures);
  // Most figures need no price: nearly all bytes are left, or all is as assumed or better.
  if (!codec_is_faster({.total = figures.share()}, {.total = 1000})) return false;
  if (figures.share() <= chosen.codec->expected(spec.dtype) &&
      measured.codec_bandwidth == parameters_.codec_bandwidth) {
    return true;
  }
  const Spec priced = representative(spec, priced_dtype(spec), topology_->size());
  return codec_is_faster(cost(priced, chosen, measured),
                         cost(priced, {chosen.algorithm, nullptr}, measured));
}

std::string Planner::class_name(const Spec& spec) const {
  const int bits = size_class(spec, topology_->size());
  const Algorithm* const wanted = named(spec);
  return std::string(name(spec.collective)) + " of " + name(priced_dtype(spec)) + " from " +
         format_bytes(bits == 0 ? 0 : int64_t{1} << (bits - 1)) +
         (wanted ? std::string(" by ") + wanted->name : "");
}

std::vector<Plan> Planner::build_all(const Spec& spec, const Selection& selection) const {
  expect_all_splits(spec);
  std::vector<int> ranks(topology_->size());
  std::iota(ranks.begin(), ranks.end(), 0);
  PlanBuilder builder(*topology_, spec, ranks, selection.codec);
  return build(builder, *selection.algorithm, ranks);
}

bool Planner::replays(const CostParameters& parameters) const {
  return topology_->size() <= parameters.replayed_ranks;
}

Cost Planner::cost(const Spec& spec, const Selection& selection,
                   const CostParameters& parameters) const {
  expect_all_splits(spec);
  if (replays(parameters)) return predict(*topology_, build_all(spec, selection), parameters);
  const std::vector<Representative> representatives =
      representatives_of(*topology_, spec, parameters);
  std::vector<int> ranks;
  for (const Representative& some : representatives) ranks.push_back(some.rank);
  PlanBuilder builder(*topology_, spec, ranks, selection.codec, true);
  const std::vector<Plan> plans = build(builder, *selection.algorithm, ranks);
  const Hops hops = selection.algorithm->hops(*topology_);
  return estimate(*topology_, plans, representatives, builder.division(), hops, parameters);
}

std::vector<Representative> Planner::representatives(const Spec& spec) const {
  validate(spec);
  if (!replays(parameters_)) return representatives_of(*topology_, spec, parameters_);
  std::vector<Representative> all;
  for (int rank = 0; rank < topology_->size(); ++rank) all.push_back({rank, 1});
  return all;
}

std::vector<Plan> Planner::plan_all(const Spec& spec) const {
  validate(spec);
  return build_all(spec, select(spec));
}

std::vector<Plan> Planner::plan_all(const Spec& spec, const Algorithm& algorithm) const {
  validate(spec);
  return build_all(spec, select(spec, algorithm));
}

Cost Planner::cost(const Spec& spec) const {
  validate(spec);
  return cost(spec, select(spec), parameters_);
}

Cost Planner::cost(const Spec& spec, const Algorithm& algorithm) const {
  validate(spec);
  return cost(spec, select(spec, algorithm), parameters_);
}

Planner::Selection Planner::select(const Spec& spec, const Algorithm& algorithm) const {
  if (algorithm.collective != spec.collective) {
    refuse(spec, std::string("expected one of ") + names_for(spec.collective) + "; got one for " +
                     name(algorithm.collective));
  }
  const std::string reason = why_not(algorithm, spec);
  if (!reason.empty()) refuse(spec, std::string(algorithm.name) + " " + reason);
  const auto codecs = codec_candidates(codec_for(spec), *topology_, parameters_, spec);
  const Codec* codec = codecs[0];
  if (codecs.size() > 1 && spec.splits.empty()) codec = price(algorithm, spec).codec;
  return {&algorithm, codec};
}

// The algorithm with each codec, for the size class of the spec.
Planner::Candidate Planner::price(const Algorithm& algorithm, const Spec& spec) const {
  const Spec priced = representative(spec, priced_dtype(spec), topology_->size());
  Candidate best{&algorithm, "", {}, nullptr};
  bool first = true;
  for (const Codec* codec : codec_candidates(codec_for(spec), *topology_, parameters_, spec)) {
    const Cost predicted = cost(priced, {&algorithm, codec}, parameters_);
    if (!first && !codec_is_faster(predicted, best.cost)) continue;
    first = false;
    best.cost = predicted;
    best.codec = codec;
  }
  return best;
}

// A codec makes the price depend on the dtype.
Dtype Planner::priced_dtype(const Spec& spec) const {
  const bool encoded =
      codec_candidates(codec_for(spec), *topology_, parameters_, spec).back() != nullptr;
  return encoded ? spec.dtype : Dtype::float32;
}

Planner::Choice Planner::choose(const Spec& spec) const {
  validate(spec);
  Choice choice{nullptr, nullptr, "", {}};
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective != spec.collective) continue;
    const std::string reason = why_not(algorithm, spec);
    choice.candidates.push_back(reason.empty() ? price(algorithm, spec)
                                               : Candidate{&algorithm, reason, {}, nullptr});
  }
  if (!spec.splits.empty()) {
    const Selection selection = unpriced(spec);
    choice.algorithm = selection.algorithm;
    choice.codec = selection.codec;
    choice.why = "blocks are unequal, and a rank knows only its own";
    return choice;
  }
  if (const Algorithm* wanted = named(spec)) {
    choice.algorithm = wanted;
    for (const Candidate& candidate : choice.candidates) {
      if (candidate.algorithm == wanted) choice.codec = candidate.codec;
    }
    choice.why = "the selection table says so";
    return choice;
  }
  std::vector<const Candidate*> ranked;
  for (const Candidate& candidate : choice.candidates) {
    if (candidate.rejected.empty()) ranked.push_back(&candidate);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const Candidate* a, const Candidate* b) {
    return a->cost.total < b->cost.total;
  });
  const auto preferred = std::find_if(
      choice.candidates.begin(), choice.candidates.end(), [&](const Candidate& candidate) {
        return candidate.rejected.empty() &&
               candidate.cost.total - ranked[0]->cost.total <= ranked[0]->cost.total / kAlike;
      });
  const bool alike = &*preferred != ranked[0];
  std::stable_partition(ranked.begin(), ranked.end(),
                        [&](const Candidate* each) { return each == &*preferred; });
  choice.algorithm = ranked[0]->algorithm;
  choice.codec = ranked[0]->codec;
  choice.why = "predicted " + in_seconds(ranked[0]->cost) + " for the size class; ";
  choice.why += ranked.size() == 1 ? "no other applies"
                                   : "next is " + std::string(ranked[1]->algorithm->name) +
                                         " with " + in_seconds(ranked[1]->cost);
  if (alike) choice.why += ", which counts as equal";
  return choice;
}

const Algorithm* Planner::named(const Spec& spec) const {
  const std::string& wanted =
      table_.algorithm(spec.collective, largest_buffer(spec, topology_->size()));
  if (wanted == "auto") return nullptr;
  const Algorithm* algorithm = find(spec.collective, wanted);
  const std::string reason = why_not(*algorithm, spec);
  if (reason.empty()) return algorithm;
  refuse(spec, "the selection table names " + wanted + ", which " + reason + "; correct it");
}

// A rank knows only its own splits, so the choice must not depend on them.
Planner::Selection Planner::unpriced(const Spec& spec) const {
  const auto codecs = codec_candidates(codec_for(spec), *topology_, parameters_, spec);
  return {applicable(spec)[0], codecs.size() == 1 ? codecs[0] : nullptr};
}

Planner::Selection Planner::select(const Spec& spec) const {
  if (!spec.splits.empty()) return unpriced(spec);
  const auto codecs = codec_candidates(codec_for(spec), *topology_, parameters_, spec);
  const Algorithm* const wanted = named(spec);
  if (wanted && codecs.size() == 1) return {wanted, codecs[0]};
  const SizeClass key(spec.collective, size_class(spec, topology_->size()), priced_dtype(spec),
                      wanted, id_of(codec_for(spec)));
  {
    std::lock_guard lock(mutex_);
    auto found = selected_.find(key);
    if (found != selected_.end()) return found->second;
  }
  const std::vector<const Algorithm*> all = applicable(spec);
  Selection chosen{all[0], codecs[0]};
  if (wanted) {
    chosen = {wanted, price(*wanted, spec).codec};
  } else if (all.size() > 1 || codecs.size() > 1) {
    const Choice choice = choose(spec);
    chosen = {choice.algorithm, choice.codec};
  }
  std::lock_guard lock(mutex_);
  return selected_.emplace(key, chosen).first->second;
}

}  // namespace hetcomm
