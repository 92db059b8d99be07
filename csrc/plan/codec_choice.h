#pragma once

#include <vector>

#include "codec/codec.h"
#include "plan/cost.h"
#include "plan/plan.h"
#include "topology/topology.h"

namespace hetcomm {

// What an automatic codec has done in calls of one size class, on all ranks.
struct CodecFigures {
  int64_t plain = 0;    // bytes of the elements that ranks sent encoded
  int64_t encoded = 0;  // bytes of these messages
  // Of the rank whose host was busiest: bytes that the host encoded or decoded, times
  // Codec::effort() / 1,000 and its ranks for each processor; and the ns that this took. Both are 0
  // where devices encode.
  int64_t work = 0;
  int64_t time = 0;

  void add(const CodecFigures& other_ranks);
  int64_t share() const;  // bytes of results for each 1,000 bytes of elements
  int64_t rate() const;   // B/s, for CostParameters::codec_bandwidth

  bool operator==(const CodecFigures&) const = default;
};

// The parameters with what was measured: the share, and a rate below the assumed one. The assumed
// rate leaves time for other work, which no rate of a codec shows.
CostParameters with_figures(CostParameters parameters, const CodecFigures& figures);

// The codecs among which the planner chooses for a spec; null is none. One entry is no choice. With
// "auto" a codec is a candidate only where bandwidths are known, and a host decodes as fast.
std::vector<const Codec*> codec_candidates(const CodecSetting& setting, const Topology& topology,
                                           const CostParameters& parameters, const Spec& spec);

// Whether a lossy codec may change the values: those of sums and gathered tensors.
bool can_round(const Spec& spec);

// Whether plans with a codec are predicted to be faster by at least 5 %.
bool codec_is_faster(const Cost& with, const Cost& without);

}  // namespace hetcomm
