#include "health/pace_watch.h"

#include "exec/warning.h"

namespace hetcomm {
namespace {

constexpr auto kQuiet = std::chrono::minutes(10);
constexpr int kSlowPath = -1;
// Calls for a whole look. After fewer calls the next look compares the same calls again.
constexpr int kFewestJudged = 20;

}  // namespace

PaceWatch::PaceWatch(Predicted predicted, std::chrono::nanoseconds period)
    : predicted_(std::move(predicted)), period_(period), warning_limit_(kQuiet) {}

std::optional<Inquiry> PaceWatch::due() {
  std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  if (awaits_state_ || now - last_look_ < period_) return std::nullopt;
  awaits_state_ = true;
  last_look_ = now;
  return Inquiry{.detail = Inquiry::Detail::pace, .sequence = since_};
}

void PaceWatch::judge(const GroupState& state) {
  const auto found = straggler(state);
  {
    std::lock_guard lock(mutex_);
    awaits_state_ = false;
    if (found && found->compared >= kFewestJudged) {
      since_ = found->newest + 1;
      late_.resize(found->last_by_rank.size());
      for (size_t rank = 0; rank < late_.size(); ++rank) late_[rank] += found->last_by_rank[rank];
      compared_ += found->compared;
    }
  }
  if (found && found->persistent && warning_limit_.allows(found->rank)) {
    warn(found->text(state), state.asker);
  }
  const std::string slow = slow_collective(state, predicted_);
  if (!slow.empty() && warning_limit_.allows(kSlowPath)) warn(slow, state.asker);
}

std::vector<uint64_t> PaceWatch::late(uint64_t& compared) const {
  std::lock_guard lock(mutex_);
  compared = compared_;
  return late_;
}

}  // namespace hetcomm
