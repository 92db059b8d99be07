#include "health/losses.h"

#include <algorithm>
#include <set>
#include <vector>

#include "health/turn.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

// After this time a rank whose connection ended without a goodbye counts as dead. Until then a
// kernel delivers what the rank has sent, and other ranks tell an earlier cause. On one host no
// message is on a wire, so the time is only for ranks that wait for a processor.
constexpr auto kGrace = 500ms;
constexpr auto kGraceOnOneHost = 100ms;
// Each further loss begins the grace anew, but for no longer than this.
constexpr auto kMostMore = 500ms;
// The time for the flood of the decision, before the next survivor decides.
constexpr auto kTurn = 250ms;

}  // namespace

Losses::Losses(WatchedGroup& group, const CallWatch& calls, Inquiries& inquiries)
    : group_(group), calls_(calls), inquiries_(inquiries), grace_(kGrace) {}

void Losses::share_host() { grace_ = kGraceOnOneHost; }

int Losses::survivors_below() const {
  int below = 0;
  for (int peer = 0; peer < group_.rank; ++peer) {
    below += !group_.left(peer) && !group_.lost.contains(peer) ? 1 : 0;
  }
  return below;
}

// A rank whose neighbours are all lost or have left hears no news, and nobody sees its end.
void Losses::note_cut_off() {
  std::vector<int> reached = {group_.rank};
  std::set<int> known = {group_.rank};
  while (!reached.empty()) {
    const int rank = reached.back();
    reached.pop_back();
    for (int peer : group_.control.ring().neighbours(rank)) {
      const bool absent = group_.left(peer) || group_.lost.contains(peer);
      if (!absent && known.insert(peer).second) reached.push_back(peer);
    }
  }
  for (int rank = 0; rank < group_.size; ++rank) {
    if (!known.contains(rank)) group_.note_loss({.rank = rank});
  }
}

// A process that was killed in the grace may still be about to end. Its connections are open, but
// it does not answer.
void Losses::call_roll() {
  roll_due_ = Clock::now() + Inquiries::kAnswerBound;
  inquiries_.call_roll([this](const GroupState&) {
    std::lock_guard lock(group_.mutex);
    roll_over_ = true;
    group_.executor.poll_by(Clock::now());
  });
}

void Losses::check() {
  if (group_.lost.empty()) roll_due_ = {}, roll_over_ = false;
  if (group_.lost.empty() || !group_.cause.ok()) return;
  auto first = Clock::time_point::max(), last = Clock::time_point::min();
  for (const auto& [peer, loss] : group_.lost) {
    first = std::min(first, loss.since);
    last = std::max(last, loss.since);
  }
  const auto now = Clock::now();
  const auto settled = std::min(last + grace_, first + grace_ + kMostMore);
  const auto disputed = settled - grace_ / 2;  // before the failure that others may decide
  auto due = settled;
  if (const int below = survivors_below(); below > 0) {
    due = first + grace_ + kMostMore + Inquiries::kAnswerBound + wait_of_turns(below, kTurn);
  } else if (roll_due_ != Clock::time_point()) {
    due = roll_over_ ? now : roll_due_;
  } else if (now >= settled) {
    note_cut_off();
    call_roll();
    due = roll_due_;
  }
  if (now >= disputed) {
    if (const auto run = calls_.disputed_run()) return group_.fail(run->dispute());
  }
  if (now >= due) {
    note_cut_off();
    return group_.fail(group_.losses());
  }
  group_.executor.poll_by(now < disputed ? disputed : due);
}

}  // namespace hetcomm
