// Rails that fail during a job. The links of the failed rail lose a stripe at once, and later plans
// leave the rail out. All ranks agree on the first call of such plans: after every call that any
// rank has planned with the rail.

#include <algorithm>

#include "base/rate.h"
#include "exec/warning.h"
#include "health/health.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

// Ranks report their next call under this name, in one round for each lost rail. The longest time
// of all ranks stands for the call.
const char* const kRails = "rails";
// A link that has lost a stripe fails as a whole by then if its peer is gone.
constexpr auto kLinkBound = 1s;

bool has(const std::vector<RailEnds>& rails, const RailEnds& rail) {
  return std::any_of(rails.begin(), rails.end(),
                     [&](const RailEnds& one) { return one.joins_same_nics(rail); });
}

std::ptrdiff_t rails_lost_by(uint64_t sequence, const std::vector<uint64_t>& first_calls) {
  return std::count_if(first_calls.begin(), first_calls.end(),
                       [&](uint64_t first) { return first <= sequence; });
}

}  // namespace

void Health::check_rails() {
  if (!cause_.ok()) return;
  while (const auto failure = rails_ ? rails_->next_failure() : std::nullopt) {
    lose_rail(failure->rail, failure->why, failure->peer);
  }
  // The transport may notice first, or alone.
  if (!lost_.empty()) return;
  std::vector<const OwnStripe*> failed;
  {
    const auto held = executor_.lock();
    for (OwnStripe& stripe : stripes_) {
      if (stripe.stripe == 0 || !queue_->paths->lost(stripe.peer, stripe.stripe)) continue;
      if (stripe.lost_since == Clock::time_point()) stripe.lost_since = Clock::now();
      if (Clock::now() - stripe.lost_since > kLinkBound) failed.push_back(&stripe);
    }
  }
  for (const OwnStripe* stripe : failed) {
    lose_rail(stripe->rail, "its connections have ended", stripe->peer);
  }
}

void Health::lose_rail(const RailEnds& rail, const std::string& why, int peer) {
  if (has(lost_rails_, rail)) return;
  const auto own = std::find_if(stripes_.begin(), stripes_.end(), [&](const OwnStripe& stripe) {
    return stripe.rail.joins_same_nics(rail);
  });
  const std::string words = rail.words + " any more: " + why + "; ";
  if (own == stripes_.end() || own->stripe == 0) {
    return fail(Status(Code::transport,
                       words + "mend the network, or leave it out with HETCOMM_SOCKET_IFNAME; or "
                               "see whether the host runs",
                       -1, peer));
  }
  int64_t all = 0, left = 0;
  for (const OwnStripe& stripe : stripes_) {
    if (stripe.peer != own->peer) continue;
    all += stripe.bandwidth;
    if (stripe.rail.joins_same_nics(rail) || has(lost_rails_, stripe.rail)) continue;
    left += stripe.bandwidth;
  }
  RailEnds told = rail;
  told.words = words + "messages between them take other NICs, with " + rate_text(left) +
               " left of " + rate_text(all) +
               "; mend the network, and make the group anew to use it again";
  control_.flood(News{.kind = News::Kind::rail, .rail = told}.pack());
  on_rail(rank_, told);
}

// Every rank learns of a lost rail from the rank that noticed, and then from rank 0. Rank 0 tells
// each rail once, so all ranks have one order of them.
void Health::on_rail(int origin, const RailEnds& rail) {
  const bool known = has(lost_rails_, rail);
  if (!known) {
    lost_rails_.push_back(rail);
    const auto held = executor_.lock();
    for (const OwnStripe& stripe : stripes_) {
      if (!stripe.rail.joins_same_nics(rail)) continue;
      if (stripe.stripe == 0) fail(Status(Code::transport, rail.words, -1, stripe.peer));
      queue_->paths->lose(stripe.peer, stripe.stripe);
    }
  }
  if (rank_ == 0 && known) return;
  if (rank_ == 0) {
    warn("group \"" + group_ + "\": " + rail.words, rank_);
    if (origin != 0) control_.flood(News{.kind = News::Kind::rail, .rail = rail}.pack());
  } else if (origin != 0) {
    return;
  }
  left_out_.push_back(rail);
  report(kRails, static_cast<int64_t>(left_out_.size()),
         {.time = static_cast<int64_t>(next_call_)});
}

bool Health::use_rails_from(const News& total) {
  if (total.trial != kRails) return false;
  std::lock_guard lock(mutex_);
  first_calls_.push_back(static_cast<uint64_t>(total.figures.time));
  agreed_changed_.notify_all();
  return true;
}

bool Health::plans_without(size_t left_out, uint64_t sequence) {
  std::lock_guard lock(mutex_);
  if (left_out_.empty() || !cause_.ok()) return true;
  return agreed() && static_cast<std::ptrdiff_t>(left_out) == rails_lost_by(sequence, first_calls_);
}

std::vector<RailEnds> Health::lost_rails(uint64_t sequence, const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  while (!agreed() && !deadline.passed()) agreed_changed_.wait_for(lock, interval);
  if (!agreed()) {
    throw Error(Code::timeout,
                "a rail has failed, and not all ranks have said from which call on they do "
                "without; a rank has left the group, or stands still");
  }
  return {left_out_.begin(), left_out_.begin() + rails_lost_by(sequence, first_calls_)};
}

}  // namespace hetcomm
