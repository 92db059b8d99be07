#include <cmath>

#include "base/status.h"
#include "base/text.h"
#include "plan/overlap.h"
#include "plan/planner.h"

// The specs that a planner refuses.
namespace hetcomm {

void Planner::refuse(const Spec& spec, const std::string& why) {
  throw Error(Code::invalid_argument, describe(spec) + ": " + why);
}

void Planner::expect_all_splits(const Spec& spec) {
  if (spec.splits_rank >= 0) refuse(spec, "expected the splits of all ranks");
}

void Planner::validate(const Spec& spec) const {
  const int size = topology_->size();
  if (is_message(spec.collective)) {
    refuse(spec, "expected a collective; send() and recv() plan messages between two ranks");
  }
  const int64_t most = INT64_MAX / 16 / size;
  if (spec.count < 0 || spec.count > most) {
    refuse(spec, "expected a count from 0 to " + std::to_string(most));
  }
  if (has_root(spec.collective) && (spec.root < 0 || spec.root >= size)) {
    refuse(spec, "expected a root from 0 to " + std::to_string(size - 1) + "; got " +
                     std::to_string(spec.root));
  }
  if (has_reduction(spec.collective) && !reducible(spec.dtype, spec.op)) {
    const bool moved = class_of(spec.dtype) == DtypeClass::moved;
    refuse(spec, std::string(name(spec.op)) + " is not defined for " + name(spec.dtype) +
                     "; expected " +
                     (moved             ? "a numeric dtype"
                      : scales(spec.op) ? "a floating dtype, or sum and a scale of your own"
                                        : "an operation other than band, bor and bxor, or an "
                                          "integer dtype"));
  }
  if (!std::isfinite(spec.factor) || (spec.op != ReduceOp::premul_sum && spec.factor != 1)) {
    refuse(spec, "expected a finite factor of premul_sum, and 1 for other operations; got " +
                     format_general(spec.factor));
  }
  if (has_reduction(spec.collective) && !ccl_reduces(spec.dtype, spec.op)) {
    for (const std::vector<int>& members : topology_->islands()) {
      if (members.size() < 2 || !topology_->native(members[0])) continue;
      refuse(spec, "the native library of the island of ranks " + std::to_string(members[0]) +
                       " and " + std::to_string(members[1]) + " has no " + name(spec.op) + " of " +
                       name(spec.dtype) +
                       "; use another operation or dtype, such as int32 for int16, or reduce "
                       "tensors in host memory");
    }
  }
  if (has_reduction(spec.collective) && is_float8(spec.dtype)) expect_float8(spec);
  validate_codec(spec);
  if (spec.in_place && !allows_in_place(spec.collective)) {
    refuse(spec, "in place is for all_reduce, reduce and broadcast; expected separate buffers");
  }
  if (spec.splits.empty() && spec.splits_rank >= 0) {
    refuse(spec, "expected the splits of rank " + std::to_string(spec.splits_rank) + "; got none");
  }
  if (spec.splits.empty()) return;
  if (spec.collective != Collective::all_to_all) refuse(spec, "splits are for all_to_all only");
  const int rows = spec.splits_rank < 0 ? size : 2;
  if (spec.splits.size() != static_cast<size_t>(rows) * size || spec.splits_rank >= size) {
    refuse(spec, "expected " + std::to_string(size) + " x " + std::to_string(size) +
                     " splits, or 2 x " + std::to_string(size) + " of a rank below " +
                     std::to_string(size) + "; got " + std::to_string(spec.splits.size()));
  }
  for (size_t i = 0; i < spec.splits.size(); ++i) {
    if (spec.splits[i] >= 0 && spec.splits[i] <= most) continue;
    const int row = static_cast<int>(i / size), column = static_cast<int>(i % size);
    const bool receives = spec.splits_rank >= 0 && row == 1;
    refuse(spec, "expected splits from 0 to " + std::to_string(most) + "; got " +
                     std::to_string(spec.splits[i]) + " from rank " +
                     std::to_string(receives               ? column
                                    : spec.splits_rank < 0 ? row
                                                           : spec.splits_rank) +
                     " to " + std::to_string(receives ? spec.splits_rank : column));
  }
}

// A call is legal or not wherever its ranks are: all codecs that it names must fit.
void Planner::validate_codec(const Spec& spec) const {
  const CodecSetting& setting = spec.codec;
  if (spec.feedback && !(setting.lossy() && has_reduction(spec.collective))) {
    refuse(spec, "feedback is for sums with a lossy codec; got codec " + name_of(setting));
  }
  if (setting.codec && !setting.automatic) validate_codec(spec, *setting.codec);
  if (setting.in_host) validate_codec(spec, *setting.in_host);
}

void Planner::validate_codec(const Spec& spec, const Codec& codec) const {
  if (!codec.encodes(spec.dtype)) {
    refuse(spec, "codec " + codec.name() + " does not encode " + name(spec.dtype) +
                     "; leave the codec out, or cast to float32 first");
  }
  constexpr size_t kMany = 1 << 20;
  if (codec.lossless()) return;
  if (codec.capacity(spec.dtype, kMany) >= kMany * size_of(spec.dtype)) {
    refuse(spec, "codec " + codec.name() + " needs as many bytes as " + name(spec.dtype) +
                     " has; choose a smaller parameter");
  }
  if (!can_round(spec)) {
    refuse(spec, "codec " + codec.name() +
                     " is lossy: expected an all_gather, or a sum, average or premul_sum by "
                     "all_reduce, reduce or reduce_scatter; use lossless elsewhere");
  }
}

void Planner::expect_float8(const Spec& spec) const {
  for (int rank = 0; rank < topology_->size(); ++rank) {
    const RankInfo& info = topology_->rank(rank);
    const bool alone = topology_->island(topology_->island_of(rank)).size() < 2;
    if (alone || !topology_->native(rank) || info.float8) continue;
    const auto reason = info.libraries.find("float8");
    refuse(spec, "expected a library that reduces 8-bit floats; rank " + std::to_string(rank) +
                     " on " + info.host_name + " has " + info.ccl + " and " + info.device +
                     (reason == info.libraries.end() ? "" : ": " + reason->second) +
                     "; or reduce as bfloat16");
  }
}

}  // namespace hetcomm
