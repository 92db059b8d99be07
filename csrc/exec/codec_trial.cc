#include "exec/codec_trial.h"

#include <bit>

namespace hetcomm {
namespace {

constexpr int kGrowth = 3;  // log2 of the calls of a round over those of the round before
constexpr int64_t kMostRounds = 62 / kGrowth;  // a malformed record may have more

}  // namespace

int64_t CodecTrial::awaited_by(int64_t call) {
  return (std::bit_width(static_cast<uint64_t>(call)) - 1) / kGrowth;
}

int64_t CodecTrial::first_call(int64_t round) {
  return round <= kMostRounds ? int64_t{1} << (kGrowth * round) : INT64_MAX;
}

int64_t CodecTrial::reported_by(int64_t call) {
  const int64_t round = awaited_by(2 * call);
  return 2 * call == first_call(round) ? round : 0;
}

void CodecTrial::record_work(const Step& step, std::chrono::nanoseconds time) {
  const Codec& codec = step.kind->encodes ? *step.target.codec : *step.sources.back().codec;
  work_ += step.target.plain_bytes() * codec.effort(step.target.dtype) / 1000;
  time_ += time.count();
}

void CodecTrial::record_message(int64_t plain, int64_t encoded) {
  plain_ += plain;
  encoded_ += encoded;
}

CodecFigures CodecTrial::take_figures() {
  return {plain_.exchange(0), encoded_.exchange(0), work_.exchange(0), time_.exchange(0)};
}

void CodecTrial::decide(int64_t round, const CodecFigures& figures) {
  if (encodes(first_call(round)) && !judge_(*this, round, figures)) stops_at_ = first_call(round);
  rounds_ = round;
}

}  // namespace hetcomm
