// Rank 0 looks at the pace of its group: who comes late, and which collective is far slower than
// the cost model predicts.

#include "health/pace_watch.h"

#include "exec/callbacks.h"
#include "exec/warning.h"
#include "health/health.h"

namespace hetcomm {
namespace {

constexpr auto kQuiet = std::chrono::minutes(10);
constexpr int kSlowPath = -1;
// Calls for a whole look. After fewer calls the next look compares the same calls again.
constexpr int kFewestJudged = 20;

}  // namespace

std::optional<Inquiry> PaceWatch::due() {
  std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  if (now - last_look_ < period_) return std::nullopt;
  last_look_ = now;
  return Inquiry{.detail = Inquiry::Detail::pace, .sequence = since_};
}

bool PaceWatch::may_warn(int subject) {
  std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  const auto [last, first] = warned_.try_emplace(subject, now);
  if (!first && now - last->second < kQuiet) return false;
  last->second = now;
  return true;
}

void PaceWatch::judge(const GroupState& state) {
  if (const auto found = straggler(state)) {
    if (found->compared >= kFewestJudged) {
      std::lock_guard lock(mutex_);
      since_ = found->newest + 1;
      late_.resize(found->last_by_rank.size());
      for (size_t rank = 0; rank < late_.size(); ++rank) late_[rank] += found->last_by_rank[rank];
      compared_ += found->compared;
    }
    if (found->persistent && may_warn(found->rank)) warn(found->text(state), state.asker);
  }
  const std::string slow = slow_collective(state, predicted_);
  if (!slow.empty() && may_warn(kSlowPath)) warn(slow, state.asker);
}

std::vector<uint64_t> PaceWatch::late(uint64_t& compared) const {
  std::lock_guard lock(mutex_);
  compared = compared_;
  return late_;
}

void Health::watch_pace(Predicted predicted, std::chrono::nanoseconds period) {
  if (rank_ == 0) pace_ = std::make_shared<PaceWatch>(std::move(predicted), period);
}

void Health::look_at_pace() {
  if (!pace_) return;
  const auto inquiry = pace_->due();
  if (!inquiry) return;
  {
    std::lock_guard lock(mutex_);
    if (!cause_.ok() || !departures_.empty() || next_call_ == 0) return;
  }
  inquire("the pace of the group", *inquiry, [pace = pace_](const GroupState& state) {
    run_callback([=] { run_logged([&] { pace->judge(state); }); });
  });
}

GroupTotals Health::totals() {
  GroupTotals found;
  std::lock_guard lock(mutex_);
  found.group = group_;
  found.rank = rank_;
  found.stalls = stalls_;
  if (pace_) found.late = pace_->late(found.compared);
  const auto held = executor_.lock();
  found.collectives = queue_->recorder.totals();
  found.failed = !queue_->failure.ok();
  return found;
}

}  // namespace hetcomm
