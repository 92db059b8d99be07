#include "plan/codec_choice.h"

#include <algorithm>

namespace hetcomm {
namespace {

constexpr int64_t kLeastGain = 5;  // percent

bool bandwidths_known(const Topology& topology, const CostParameters& parameters) {
  if (parameters.profile) return true;
  for (size_t host = 0; host < topology.hosts().size(); ++host) {
    if (topology.host_bandwidth(static_cast<int>(host)) <= 0) return false;
  }
  return true;
}

// Whether data reach each host faster than its ranks could decode. Then no codec saves time.
bool outruns(const Topology& topology, const CostParameters& parameters, const Codec& codec,
             Dtype dtype) {
  if (parameters.profile) return false;
  for (int host = 0; host < static_cast<int>(topology.hosts().size()); ++host) {
    const auto ranks = static_cast<int64_t>(topology.hosts()[host].size());
    const int64_t cores = std::min<int64_t>(ranks, topology.processors(host));
    const int64_t decoded = parameters.codec_bandwidth / codec.effort(dtype) * 1000 * cores;
    if (topology.host_bandwidth(host) <= decoded) return false;
  }
  return true;
}

// value * times / by, rounded up, at least 1.
int64_t scaled_up(int64_t value, int64_t times, int64_t by) {
  const __int128 product = static_cast<__int128>(value) * times;
  return std::max<int64_t>(1, static_cast<int64_t>((product + by - 1) / by));
}

}  // namespace

bool can_round(const Spec& spec) {
  switch (spec.collective) {
    case Collective::all_gather:
      return true;
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::reduce_scatter:
      return combining(spec.op) == ReduceOp::sum;
    default:
      return false;
  }
}

void CodecFigures::add(const CodecFigures& other_ranks) {
  plain += other_ranks.plain;
  encoded += other_ranks.encoded;
  work = std::max(work, other_ranks.work);
  time = std::max(time, other_ranks.time);
}

int64_t CodecFigures::share() const {
  return scaled_up(encoded, 1000, std::max<int64_t>(1, plain));
}

int64_t CodecFigures::rate() const {
  return scaled_up(work, 1'000'000'000, std::max<int64_t>(1, time));
}

CostParameters with_figures(CostParameters parameters, const CodecFigures& figures) {
  parameters.encoded_share = figures.share();
  if (figures.work > 0) {
    parameters.codec_bandwidth = std::min(parameters.codec_bandwidth, figures.rate());
  }
  return parameters;
}

std::vector<const Codec*> codec_candidates(const CodecSetting& setting, const Topology& topology,
                                           const CostParameters& parameters, const Spec& spec) {
  if (!setting.codec || !setting.codec->encodes(spec.dtype)) return {nullptr};
  if (!setting.automatic) return {setting.codec};
  if (!bandwidths_known(topology, parameters)) return {nullptr};
  if (outruns(topology, parameters, *setting.codec, spec.dtype)) return {nullptr};
  return {nullptr, setting.codec};
}

bool codec_is_faster(const Cost& with, const Cost& without) {
  return with.total < without.total / 100 * (100 - kLeastGain);
}

}  // namespace hetcomm
