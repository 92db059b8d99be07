#include "plan/memory_rules.h"

#include <algorithm>

#include "plan/builder.h"
#include "plan/lowering.h"
#include "plan/step_graph.h"

namespace hetcomm {
namespace {

constexpr int64_t kCodedAlignment = 16;  // in bytes, for kernels of devices

bool staged(const Range& range) { return range.space == Space::staging; }

// What was expected of the step; empty if the step is right.
std::string expected(const Topology& topology, int rank, const Step& step) {
  const std::vector<Range> read = without_residuals(reads(step, rank)),
                           written = without_residuals(writes(step, rank));
  const auto sources = std::count_if(read.begin(), read.end(), staged);
  const auto targets = std::count_if(written.begin(), written.end(), staged);
  const auto all = static_cast<std::ptrdiff_t>(read.size() + written.size());
  const std::ptrdiff_t in_staging = sources + targets;
  if (!topology.native(rank)) {
    return in_staging == 0 ? "" : "expected no staging on a rank with host memory";
  }
  if (step.in_island()) {
    return in_staging == 0 ? "" : "expected the device's own memory in island steps";
  }
  if (step.is_message()) {
    const Codec* const codec = step.message().codec;
    if (codec && !sends_from_device(topology, rank, *codec)) {
      return in_staging == all ? "" : "expected staging, for the host encodes or needs the length";
    }
    if (topology.staged(rank, step.peer, step.message().bytes())) {
      return in_staging == all ? "" : "expected staging, for this message is not direct";
    }
    return in_staging == 0 ? "" : "expected no staging, for this message is direct";
  }
  if (step.kind->memory == StepKind::Memory::between) {
    return in_staging < all ? "" : "expected a copy from or to device memory";
  }
  if (in_staging == all) return "";
  if (in_staging > 0) return "expected all of them in device memory or all in staging";
  if (!topology.rank(rank).kernels) return "expected staging, for its device has no kernels";
  for (const auto* ranges : {&read, &written}) {
    for (const Range& range : *ranges) {
      if (!range.codec) continue;
      if (range.offset % kCodedAlignment != 0) {
        return "expected encoded elements at a multiple of " + std::to_string(kCodedAlignment) +
               " bytes";
      }
    }
  }
  return "";
}

}  // namespace

std::vector<std::string> misplaced(const Topology& topology, const std::vector<Plan>& plans,
                                   size_t most) {
  std::vector<std::string> errors;
  for (const Plan& plan : plans) {
    if (!topology.native(plan.rank) && plan.staging_bytes > 0 && errors.size() < most) {
      errors.push_back("plan of rank " + std::to_string(plan.rank) +
                       ": expected no staging on a rank with host memory; got " +
                       std::to_string(plan.staging_bytes) + " bytes");
    }
    for (int index = 0; index < static_cast<int>(plan.steps.size()); ++index) {
      const Step& step = plan.steps[index];
      const std::string wanted = expected(topology, plan.rank, step);
      if (wanted.empty() || errors.size() >= most) continue;
      errors.push_back(describe(plan, index) + ": " + wanted + "; got " + describe(step));
    }
  }
  return errors;
}

}  // namespace hetcomm
