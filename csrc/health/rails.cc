// Rails that fail during a job. The links of the failed rail lose a stripe at once, and later plans
// leave the rail out. All ranks agree on the first call of such plans: after every call that any
// rank has planned with the rail.

#include <algorithm>

#include "base/joined.h"
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

// No other rail joins this rank and the peer.
Status loss_of_last(const RailEnds& rail, int peer) {
  return Status(
      Code::transport,
      rail.words +
          "; mend the network, or leave it out with HETCOMM_SOCKET_IFNAME; or see whether "
          "the host runs",
      -1, peer);
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
      if (departures_.contains(stripe.peer)) continue;
      if (!queue_->paths->lost(stripe.peer, stripe.stripe)) continue;
      if (stripe.lost_since == Clock::time_point()) stripe.lost_since = Clock::now();
      if (Clock::now() - stripe.lost_since > kLinkBound) failed.push_back(&stripe);
    }
  }
  for (const OwnStripe* stripe : failed) {
    lose_rail(stripe->rail, "its connections have ended", stripe->peer);
  }
}

// A rail besides this one that still joins this rank and the peer.
bool Health::rails_left(int peer, const RailEnds& rail) const {
  return std::any_of(stripes_.begin(), stripes_.end(), [&](const OwnStripe& stripe) {
    return stripe.peer == peer && !stripe.rail.joins_same_nics(rail) &&
           !has(lost_rails_, stripe.rail);
  });
}

void Health::lose_rail(const RailEnds& rail, const std::string& why, int peer) {
  if (has(lost_rails_, rail)) return;
  const OwnStripe* own = nullptr;
  int64_t all = 0, left = 0;
  for (const OwnStripe& stripe : stripes_) {
    if (!stripe.rail.joins_same_nics(rail)) continue;
    const bool needed = !departures_.contains(stripe.peer);
    if (own == nullptr || (needed && !rails_left(stripe.peer, rail))) own = &stripe;
  }
  if (own == nullptr) return;  // no message takes this rail
  RailEnds told = rail;
  told.words += " any more: " + why;
  if (!rails_left(own->peer, rail)) {
    if (!departures_.contains(own->peer)) fail(loss_of_last(told, peer));
    return;
  }
  for (const OwnStripe& stripe : stripes_) {
    if (stripe.peer != own->peer) continue;
    all += stripe.bandwidth;
    if (stripe.rail.joins_same_nics(rail) || has(lost_rails_, stripe.rail)) continue;
    left += stripe.bandwidth;
  }
  told.left = rate_text(left) + " left of " + rate_text(all);
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
      const bool needed = !departures_.contains(stripe.peer);
      if (needed && !rails_left(stripe.peer, rail)) fail(loss_of_last(rail, stripe.peer));
      queue_->paths->lose(stripe.peer, stripe.stripe);
    }
  }
  if (rank_ == 0 && known) return;
  if (rank_ == 0) {
    warn("group \"" + group_ + "\": " + rail.words +
             "; messages between them take other NICs, with " + rail.left +
             "; mend the network, and make the group anew to use it again",
         rank_);
    if (origin != 0) control_.flood(News{.kind = News::Kind::rail, .rail = rail}.pack());
  } else if (origin != 0) {
    return;
  }
  if (has(left_out_, rail)) return;
  left_out_.push_back(rail);
  report(kRails, static_cast<int64_t>(left_out_.size()),
         {.time = static_cast<int64_t>(next_call_)});
}

bool Health::take_first_call(const News& total) {
  if (total.trial != kRails) return false;
  std::lock_guard lock(mutex_);
  first_calls_.push_back(static_cast<uint64_t>(total.figures.time));
  agreed_changed_.notify_all();
  return true;
}

// A rank that has reported its next call does not make this call before it learns the total. So a
// rank that left knew the rails of all its calls, and totals that it did not know begin later.
bool Health::knows_rails_of(uint64_t sequence) const {
  if (!cause_.ok() || first_calls_.size() == left_out_.size()) return true;
  return std::any_of(departures_.begin(), departures_.end(), [&](const auto& departure) {
    return sequence < departure.second.calls && departure.second.rails <= first_calls_.size();
  });
}

bool Health::leaves_out_lost_rails(size_t left_out, uint64_t sequence) {
  std::lock_guard lock(mutex_);
  if (left_out_.empty() || !cause_.ok()) return true;
  return knows_rails_of(sequence) &&
         static_cast<std::ptrdiff_t>(left_out) == rails_lost_by(sequence, first_calls_);
}

std::vector<RailEnds> Health::lost_rails(uint64_t sequence, const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  while (!knows_rails_of(sequence)) {
    for (const auto& [peer, departure] : departures_) {
      if (departure.calls > sequence) continue;
      fail(missing(peer, departure, "begins collective #" + std::to_string(sequence)));
      break;
    }
    if (deadline.passed()) fail(no_agreement());
    if (cause_.ok()) agreed_changed_.wait_for(lock, interval);
  }
  return {left_out_.begin(), left_out_.begin() + rails_lost_by(sequence, first_calls_)};
}

Status Health::no_agreement() const {
  std::vector<int> silent;
  for (const auto& [peer, since] : silent_) silent.push_back(peer);
  const std::string culprits = silent.empty()
                                   ? "a rank stands still, see \"hetcomm dump\""
                                   : "ranks that have given no sign of life: " + joined(silent);
  return Status(Code::timeout,
                "a NIC has failed, and not all ranks have said which call is their first without "
                "this NIC; " +
                    culprits,
                rank_, silent.empty() ? -1 : silent.front());
}

}  // namespace hetcomm
