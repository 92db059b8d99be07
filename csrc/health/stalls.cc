// Finds a rank that is missing in a collective, from calls, stalls and refusals.

#include <bit>

#include "base/config.h"
#include "base/joined.h"
#include "base/log.h"
#include "health/health.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

// After this time a rank floods its call, so that calls can be compared.
constexpr auto kStall = 1s;
// One flooded call is enough for the comparison, so lower ranks flood first. A rank waits kTurn for
// each binary digit of its number, and then floods only a call that no rank has flooded.
constexpr auto kTurn = Monitor::interval;
// A refused call fails the waiting collective this long before the timeout, so that the refusal is
// the error.
constexpr auto kRefusalMargin = 2 * Monitor::interval;
// By then a thread that waits for an operation has told its source line.
constexpr auto kCallerBound = 600ms;

std::string at_line(const std::string& caller) { return caller.empty() ? "" : " at " + caller; }

}  // namespace

bool Health::record(const CallDescriptor& call, size_t left_out) {
  std::lock_guard lock(mutex_);
  if (!leaves_out_lost_rails(left_out, call.sequence)) return false;
  calls_[call.sequence % kRemembered] = call;
  next_call_ = call.sequence + 1;
  refusal_.reset();
  if (early_calls_.empty()) return true;
  auto [from, to] = early_calls_.equal_range(call.sequence);
  for (auto told = from; told != to; ++told) different_.push_back(std::move(told->second));
  early_calls_.erase(from, to);
  executor_.wake_progress_thread();  // poll() compares
  return true;
}

void Health::report_refusal(const Status& why) {
  std::lock_guard lock(mutex_);
  Status::Details details;
  details.code = why.code();
  details.message = "rank " + std::to_string(rank_) + " on " + host_name() +
                    " is missing in collective #" + std::to_string(next_call_) +
                    ": its call was refused there: " + why.details().message;
  details.rank = details.peer = rank_;
  refusal_ = Refusal{Status(details)};
}

// A run of this rank that noticed by itself that ranks disagree.
std::shared_ptr<Run> Health::disputed_run() {
  const auto held = executor_.lock();
  if (!queue_->disputed) return nullptr;
  for (const auto& run : queue_->active) {
    if (run->disputed()) return run;
  }
  return nullptr;
}

// A rank that notices a dispute tells its call. A rank with another call finds the difference, and
// tells who called what.
void Health::check_disputes() {
  const auto disputed = told_dispute_ ? nullptr : disputed_run();
  if (disputed && (disputed->age() >= kCallerBound || !disputed->completion().caller().empty())) {
    told_dispute_ = true;
    control_.flood(News{.kind = News::Kind::stall,
                        .call = disputed->call(),
                        .caller = disputed->completion().caller()}
                       .pack());
  }
  std::erase_if(different_, [this](const PeerCall& theirs) { return compare(theirs); });
}

// True if there is no difference, or the difference was told. An operation that began just now does
// not yet have its source line.
bool Health::compare(const PeerCall& theirs) {
  const uint64_t sequence = theirs.call.sequence;
  const CallDescriptor mine = calls_[sequence % kRemembered];
  if (mine.sequence != sequence || mine.same_call(theirs.call)) return true;
  std::string caller;
  {
    const auto held = executor_.lock();
    for (const auto& run : queue_->active) {
      if (run->lane() >= 0 && run->call().sequence == sequence) {
        caller = run->completion().caller();
      }
    }
  }
  if (caller.empty() && Clock::now() - theirs.known < kCallerBound) return false;
  fail(Status(Code::invalid_argument,
              "ranks disagree about collective #" + std::to_string(sequence) + ": rank " +
                  std::to_string(rank_) + " called " + describe_call(mine) + at_line(caller) +
                  ", rank " + std::to_string(theirs.peer) + " called " +
                  describe_call(theirs.call) + at_line(theirs.caller) +
                  "; make the same calls in the same order on every rank (another "
                  "history: an earlier call differed already)",
              rank_, theirs.peer));
  return true;
}

void Health::note_stall(uint64_t sequence, int rank) {
  waiting_[sequence].push_back(rank);
  while (waiting_.size() > kRemembered) waiting_.erase(waiting_.begin());
}

// Floods the refusal only while a peer waits in this call. This rank may yet make the right call.
void Health::flood_refusal() {
  if (!refusal_ || refusal_->reported || early_calls_.count(next_call_) == 0) return;
  refusal_->reported = true;
  control_.flood(
      News{.kind = News::Kind::refusal, .sequence = next_call_, .why = refusal_->why}.pack());
}

Status Health::missing(int peer, const Departure& departure, const std::string& where) const {
  return Status(Code::peer_failed,
                "rank " + std::to_string(peer) + " has left the group after " +
                    std::to_string(departure.calls) + " collectives, but this rank " + where +
                    "; make the same calls on every rank" +
                    (departure.refusal.empty() ? "" : "; " + departure.refusal),
                rank_, peer);
}

void Health::check_stalls() {
  std::shared_ptr<Run> oldest, nearest;  // nearest to its timeout
  std::vector<std::shared_ptr<Run>> active;
  {
    const auto held = executor_.lock();
    active = queue_->active;
    if (!queue_->pending.empty()) active.push_back(queue_->pending.front());
  }
  for (const auto& run : active) {
    if (run->age() < kStall) continue;
    for (const auto& [peer, departure] : departures_) {
      const bool message = run->lane() < 0;
      const bool awaited =
          message ? run->plan().spec.root == peer && Clock::now() - departure.at > kStall
                  : departure.calls <= run->call().sequence;
      if (!awaited) continue;
      return fail(missing(peer, departure, "is in " + run->describe()));
    }
    if (run->lane() < 0) continue;
    if (!oldest || run->call().sequence < oldest->call().sequence) oldest = run;
    if (!nearest || run->deadline().left() < nearest->deadline().left()) nearest = run;
  }
  if (!oldest) return;
  auto refusal = peer_refusals_.find(oldest->call().sequence);
  if (refusal != peer_refusals_.end()) {
    const Status& why = refusal->second.why;
    if (!refusal->second.reported) {
      log(LogLevel::warning, "this collective may never complete: " + why.text(), rank_);
    }
    refusal->second.reported = true;
    if (oldest->deadline().left() < kRefusalMargin) fail(why);
  }
  inquire_before_timeout(*nearest);
  flood_stall(*oldest);
}

void Health::flood_stall(Run& run) {
  const uint64_t sequence = run.call().sequence;
  if (stalls_seen_ > sequence) return;
  const auto turn = std::bit_width(static_cast<unsigned>(rank_)) * kTurn;
  const bool known = waiting_.count(sequence) > 0;
  if (!known && (run.age() < kStall + turn || Clock::now() - last_stall_news_ < kStall)) return;
  stalls_seen_ = sequence + 1;
  ++stalls_;
  note_stall(sequence, rank_);
  log(LogLevel::info,
      run.describe() + " has not completed within a second; ranks known to wait in it: " +
          joined(waiting_[sequence]),
      rank_);
  if (known) return;  // the calls were compared already
  last_stall_news_ = Clock::now();
  control_.flood(
      News{.kind = News::Kind::stall, .call = run.call(), .caller = run.completion().caller()}
          .pack());
  log(LogLevel::debug, "tells the other ranks that it waits in " + run.describe(), rank_);
}

}  // namespace hetcomm
