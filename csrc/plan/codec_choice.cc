#include "plan/codec_choice.h"

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

}  // namespace

std::vector<const Codec*> codec_candidates(const CodecSetting& setting, const Topology& topology,
                                           const CostParameters& parameters, const Spec& spec) {
  if (!setting.codec || !setting.codec->encodes(spec.dtype)) return {nullptr};
  if (!setting.automatic) return {setting.codec};
  if (!bandwidths_known(topology, parameters)) return {nullptr};
  return {nullptr, setting.codec};
}

bool codec_is_faster(const Cost& with, const Cost& without) {
  return with.total < without.total / 100 * (100 - kLeastGain);
}

}  // namespace hetcomm
