#pragma once

#include <vector>

#include "codec/codec.h"
#include "plan/cost.h"
#include "plan/plan.h"
#include "topology/topology.h"

namespace hetcomm {

// The codecs among which the planner chooses for a spec; null is none. One entry is no choice. With
// "auto" a codec is a candidate only where the bandwidth of every host is known.
std::vector<const Codec*> codec_candidates(const CodecSetting& setting, const Topology& topology,
                                           const CostParameters& parameters, const Spec& spec);

// Whether plans with a codec are predicted to be faster by at least 5 %.
bool codec_is_faster(const Cost& with, const Cost& without);

}  // namespace hetcomm
