#include "health/lost_rails.h"

#include <algorithm>
#include <utility>

#include "base/joined.h"
#include "base/rate.h"
#include "exec/warning.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

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

}  // namespace

void LostRails::check() {
  if (!group_.cause.ok()) return;
  while (const auto failure = watch_ ? watch_->next_failure() : std::nullopt) {
    lose(failure->rail, failure->why);
  }
  close_lost_stripes();
  // The transport may notice first, or alone.
  if (!group_.lost.empty()) return;
  std::vector<const OwnStripe*> failed;
  {
    const auto held = group_.hold();
    if (!held) return;
    for (OwnStripe& stripe : stripes_) {
      if (group_.left(stripe.peer)) continue;
      if (!group_.queue->paths->lost(stripe.peer, stripe.stripe)) continue;
      if (stripe.lost_since == Clock::time_point()) stripe.lost_since = Clock::now();
      if (Clock::now() - stripe.lost_since > kLinkBound) failed.push_back(&stripe);
    }
  }
  for (const OwnStripe* stripe : failed) {
    lose(stripe->rail, "its connections have ended");
  }
}

// A rail besides this one still joins this rank and the peer.
bool LostRails::others_join(int peer, const RailEnds& rail) const {
  return std::any_of(stripes_.begin(), stripes_.end(), [&](const OwnStripe& stripe) {
    return stripe.peer == peer && !stripe.rail.joins_same_nics(rail) && !has(known_, stripe.rail);
  });
}

bool LostRails::is_last(const OwnStripe& stripe, const RailEnds& rail) const {
  return !group_.left(stripe.peer) && !others_join(stripe.peer, rail);
}

void LostRails::lose(const RailEnds& rail, const std::string& why) {
  if (has(known_, rail)) return;
  const OwnStripe* own = nullptr;
  for (const OwnStripe& stripe : stripes_) {
    if (!stripe.rail.joins_same_nics(rail)) continue;
    if (own == nullptr || is_last(stripe, rail)) own = &stripe;
  }
  if (own == nullptr) return;  // no message takes this rail
  RailEnds told = rail;
  told.words += " any more: " + why;
  if (!others_join(own->peer, rail)) {
    if (!group_.left(own->peer)) group_.fail(loss_of_last(told, own->peer));
    return;
  }
  told.left = rate_left(own->peer, rail);
  group_.flood(told);
  on_news(group_.rank, told);
}

// "1 Gbit/s left of 2 Gbit/s" between this rank and the peer, without this rail.
std::string LostRails::rate_left(int peer, const RailEnds& rail) const {
  int64_t all = 0, left = 0;
  for (const OwnStripe& stripe : stripes_) {
    if (stripe.peer != peer) continue;
    all += stripe.bandwidth;
    if (stripe.rail.joins_same_nics(rail) || has(known_, stripe.rail)) continue;
    left += stripe.bandwidth;
  }
  return rate_text(left) + " left of " + rate_text(all);
}

// Every rank learns of a lost rail from the rank that noticed, and then from rank 0. Rank 0 tells
// each rail once, so all ranks have one order of them.
void LostRails::on_news(int origin, const RailEnds& rail) {
  const bool fresh = take_out(rail);
  if (group_.rank != 0) {
    if (origin == 0) agree_on(rail);
    return;
  }
  if (!fresh) return;
  warn("group \"" + group_.name + "\": " + rail.words +
           "; messages between them take other NICs, with " + rail.left +
           "; mend the network, and make the group anew to use it again",
       group_.rank);
  if (origin != 0) group_.flood(rail);
  agree_on(rail);
}

bool LostRails::take_out(const RailEnds& rail) {
  if (has(known_, rail)) return false;
  known_.push_back(rail);
  for (const OwnStripe& stripe : stripes_) {
    if (!stripe.rail.joins_same_nics(rail)) continue;
    if (is_last(stripe, rail)) group_.fail(loss_of_last(rail, stripe.peer));
    unclosed_.push_back(stripe);
  }
  close_lost_stripes();
  return true;
}

void LostRails::close_lost_stripes() {
  if (unclosed_.empty()) return;
  const auto held = group_.hold();
  if (!held) return;  // the next check tries again
  for (const OwnStripe& stripe : std::exchange(unclosed_, {})) {
    group_.queue->paths->lose(stripe.peer, stripe.stripe);
  }
}

// Tells this rank's next call. This rank makes no further call before it learns the greatest one.
void LostRails::agree_on(const RailEnds& rail) {
  if (has(agreed_, rail)) return;
  agreed_.push_back(rail);
  next_calls_.add({.rail = static_cast<int64_t>(agreed_.size()),
                   .call = static_cast<int64_t>(group_.next_call)});
  take_first_calls();
}

// The parent has a result only after this rank has told its own call of the same rail.
void LostRails::on_news(int origin, const FirstCallNews& news) {
  const auto next = static_cast<int64_t>(first_calls_.size()) + 1;
  if (origin == group_.control.ring().parent(group_.rank) &&
      (news.rail != next || news.rail > static_cast<int64_t>(agreed_.size()))) {
    throw Error(Code::invalid_argument, "expected the first call without lost rail " +
                                            std::to_string(next) + ", got that of lost rail " +
                                            std::to_string(news.rail));
  }
  next_calls_.on_news(origin, news);
  take_first_calls();
}

void LostRails::take_first_calls() {
  for (const FirstCallNews& result : next_calls_.take_results()) {
    first_calls_.push_back(static_cast<uint64_t>(result.call));
  }
  group_.changed.notify_all();
}

size_t LostRails::left_out_by(uint64_t sequence) const {
  return std::count_if(first_calls_.begin(), first_calls_.end(),
                       [&](uint64_t first) { return first <= sequence; });
}

// A rank that has told its next call does not make this call before it learns the result. So a rank
// that left knew the rails of all its calls. Plans of later calls leave the other rails out.
bool LostRails::decided_for(uint64_t sequence) const {
  if (!group_.cause.ok() || first_calls_.size() == agreed_.size()) return true;
  return std::any_of(group_.departures.begin(), group_.departures.end(), [&](const auto& one) {
    const GoodbyeNews& goodbye = one.second.news;
    return sequence < goodbye.calls && goodbye.rails <= first_calls_.size();
  });
}

bool LostRails::leaves_out(size_t rails, uint64_t sequence) const {
  if (agreed_.empty() || !group_.cause.ok()) return true;
  return decided_for(sequence) && rails == left_out_by(sequence);
}

std::vector<RailEnds> LostRails::await(std::unique_lock<std::recursive_mutex>& lock,
                                       uint64_t sequence, const Deadline& deadline) {
  while (!decided_for(sequence)) {
    for (const auto& [peer, departure] : group_.departures) {
      if (departure.news.calls > sequence) continue;
      group_.fail(group_.left_too_early(peer, "begins collective #" + std::to_string(sequence)));
      break;
    }
    if (deadline.passed()) group_.fail(no_agreement());
    if (group_.cause.ok()) group_.changed.wait_for(lock, Monitor::interval);
  }
  const auto left_out = static_cast<std::ptrdiff_t>(left_out_by(sequence));
  return {agreed_.begin(), agreed_.begin() + left_out};
}

Status LostRails::no_agreement() const {
  std::vector<int> silent;
  if (const auto held = group_.hold()) {
    for (const auto& [peer, since] : group_.queue->silent) silent.push_back(peer);
  }
  const std::string culprits = silent.empty()
                                   ? "a rank stands still, see \"hetcomm dump\""
                                   : "ranks that have given no sign of life: " + joined(silent);
  return Status(Code::timeout,
                "a NIC has failed, and not all ranks have said which call is their first without "
                "this NIC; " +
                    culprits,
                group_.rank, silent.empty() ? -1 : silent.front());
}

}  // namespace hetcomm
