#include "plan/lowering.h"

#include <algorithm>

#include "plan/builder.h"
#include "plan/byte_map.h"
#include "plan/staging_cache.h"
#include "plan/steps.h"

namespace hetcomm {
namespace {

constexpr int64_t kLeastPartBytes = 512 << 10;  // a copy's latency is then small beside its time
constexpr int64_t kPartBytes = 1 << 20;         // of long messages
constexpr int64_t kParts = 16;                  // filling the pipe then costs little
constexpr int64_t kMostParts = 256;             // issuing the steps then stays cheap

// Pinned memory of a plan, and the least number of large parts that it must hold.
constexpr int64_t kStagingBytes = 32 << 20;
constexpr int64_t kStagedParts = 8;

// A device reduces this much or more, even if values must be copied first. For less, the host is
// done before a kernel has started.
constexpr int64_t kDeviceReduceBytes = 64 << 10;

// For each step the touched ranges that no later step reads. The input is left out: its values
// always stay. Encoded elements are one range.
std::vector<std::vector<Range>> last_uses(const std::vector<Step>& steps, int rank,
                                          const Range& output) {
  ByteMap<bool> live[kSpaces];  // by Space: whether a later step reads the bytes
  const auto of = [&live](const Range& range) -> ByteMap<bool>& {
    return live[static_cast<int>(range.space)];
  };
  of(output).assign(output, true);
  live[static_cast<int>(Space::input)] = ByteMap<bool>(true);
  std::vector<std::vector<Range>> last(steps.size());
  for (size_t i = steps.size(); i-- > 0;) {
    const std::vector<Range> read = reads(steps[i], rank), written = writes(steps[i], rank);
    for (const auto* ranges : {&read, &written}) {
      for (const Range& range : *ranges) {
        of(range).each(range, [&](bool is_live, int64_t begin, int64_t end) {
          if (!is_live) last[i].push_back(range.within(begin, end));
        });
      }
    }
    for (const Range& range : written) of(range).assign(range, false);
    for (const Range& range : read) of(range).assign(range, true);
  }
  return last;
}

bool on_device(const RankInfo& info, const Step& step, StagingCache& cache) {
  if (!info.kernels) return false;
  if (step.target.bytes() >= kDeviceReduceBytes) return true;
  return std::all_of(step.sources.begin(), step.sources.end(),
                     [&](const Range& source) { return cache.in_device(source); });
}

bool in_staging(const Topology& topology, int rank, const Step& step, StagingCache& cache) {
  if (step.in_island()) return false;
  if (step.is_message()) {
    const Codec* const codec = step.message().codec;
    return topology.staged(rank, step.peer, step.message().bytes()) ||
           (codec && !sends_from_device(topology, rank, *codec));
  }
  switch (step.kind->memory) {
    case StepKind::Memory::either:
      return !on_device(topology.rank(rank), step, cache);
    case StepKind::Memory::coded:
      return !topology.rank(rank).kernels;
    default:
      return false;
  }
}

}  // namespace

Lowered lower(const Topology& topology, const Spec& spec, int rank, const std::vector<Step>& steps,
              const std::function<void(Step)>& emit) {
  int64_t largest = 0;
  for (const Step& step : steps) {
    if (!step.is_message()) continue;
    const int64_t bytes = step.message().bytes();
    if (topology.staged(rank, step.peer, bytes)) largest = std::max(largest, bytes);
  }
  StagingCache cache(std::max(kStagingBytes, kStagedParts * largest),
                     [&emit](const Range& source, const Range& target) {
                       emit({.kind = &steps::copy, .sources = {source}, .target = target});
                     });
  const Range output{Space::output, 0, buffer_counts(spec, rank, topology.size()).output,
                     spec.dtype};
  const std::vector<std::vector<Range>> last = last_uses(steps, rank, output);
  for (size_t i = 0; i < steps.size(); ++i) {
    Step step = steps[i];
    if (in_staging(topology, rank, step, cache)) {
      for (Range& source : step.sources) {
        if (source.space != Space::residual) source = cache.read(source);
      }
      if (!step.kind->sends) step.target = cache.write(step.target);
    } else {
      for (const Range& range : without_residuals(reads(step, rank))) cache.read_device(range);
      for (const Range& range : without_residuals(writes(step, rank))) cache.write_device(range);
    }
    emit(std::move(step));
    for (const Range& range : without_residuals(last[i])) cache.discard(range);
    cache.next_step();
  }
  cache.read_device(output);
  return {cache.scratch_bytes(), cache.staging_bytes()};
}

bool sends_from_device(const Topology& topology, int rank, const Codec& codec) {
  return topology.rank(rank).kernels && !codec.lossless();
}

bool through_staging(const Topology& topology, int rank, int64_t bytes) {
  return topology.native(rank) &&
         (topology.stages_between_islands(rank, bytes) || !topology.rank(rank).kernels);
}

int64_t staged_part(int64_t count, Dtype dtype) {
  const auto element = static_cast<int64_t>(size_of(dtype));
  const int64_t bytes = count * element, line = kCacheLine / element;
  const int64_t parts = std::max({int64_t{1}, std::min(bytes / kLeastPartBytes, kParts),
                                  std::min(bytes / kPartBytes, kMostParts)});
  return std::max<int64_t>(1, ((count + parts - 1) / parts + line - 1) / line * line);
}

}  // namespace hetcomm
