#include "health/call_watch.h"

#include "base/config.h"
#include "base/joined.h"
#include "base/log.h"
#include "health/turn.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

// After this time a rank floods its call, so that calls can be compared.
constexpr auto kStall = 1s;
// One flooded call is enough for the comparison.
constexpr auto kTurn = Monitor::interval;
// A refused call fails the waiting collective this long before the timeout, so that the refusal is
// the error.
constexpr auto kRefusalMargin = 2 * Monitor::interval;
// By then a thread that waits for an operation has told its source line.
constexpr auto kCallerBound = 600ms;
constexpr size_t kMostEarly = 4096;

std::string at_line(const std::string& caller) { return caller.empty() ? "" : " at " + caller; }

StallNews stall_of(Run& run) { return {.call = run.call(), .caller = run.completion().caller()}; }

}  // namespace

void CallWatch::record(const CallDescriptor& call) {
  calls_[call.sequence % kRemembered] = call;
  group_.next_call = call.sequence + 1;
  refusal_.reset();
  if (early_.empty()) return;
  auto [from, to] = early_.equal_range(call.sequence);
  for (auto told = from; told != to; ++told) uncompared_.push_back(std::move(told->second));
  early_.erase(from, to);
  group_.executor.wake_progress_thread();  // check_disputes() compares
}

void CallWatch::on_news(int origin, const StallNews& news) {
  const uint64_t sequence = news.call.sequence;
  note_waiting(sequence, origin);
  if (sequence < group_.next_call) {
    uncompared_.push_back({origin, news});
  } else if (early_.size() < kMostEarly) {
    early_.emplace(sequence, PeerCall{origin, news});
  }
}

void CallWatch::report_refusal(const Status& why) {
  Status::Details details;
  details.code = why.code();
  details.message = "rank " + std::to_string(group_.rank) + " on " + host_name() +
                    " is missing in collective #" + std::to_string(group_.next_call) +
                    ": its call was refused there: " + why.details().message;
  details.rank = details.peer = group_.rank;
  refusal_ = Refusal{Status(details)};
}

std::string CallWatch::refusal() const { return refusal_ ? refusal_->why.details().message : ""; }

void CallWatch::on_news(const RefusalNews& news) {
  peer_refusals_[news.sequence] = {news.why};
  while (peer_refusals_.size() > kRemembered) peer_refusals_.erase(peer_refusals_.begin());
}

std::shared_ptr<Run> CallWatch::disputed_run() const {
  const auto held = group_.hold();
  if (!held || !group_.queue->disputed) return nullptr;
  for (const auto& run : group_.queue->active) {
    if (run->disputed()) return run;
  }
  return nullptr;
}

// A rank that notices a dispute tells its call. A rank with another call finds the difference, and
// tells who called what.
void CallWatch::check_disputes() {
  const auto disputed = told_dispute_ ? nullptr : disputed_run();
  if (disputed && (disputed->age() >= kCallerBound || !disputed->completion().caller().empty())) {
    told_dispute_ = true;
    group_.flood(stall_of(*disputed));
  }
  std::erase_if(uncompared_, [this](const PeerCall& theirs) { return compare(theirs); });
}

// True if there is no difference, or the difference was told. An operation that began just now does
// not yet have its source line.
bool CallWatch::compare(const PeerCall& theirs) {
  const CallDescriptor& call = theirs.news.call;
  const CallDescriptor mine = calls_[call.sequence % kRemembered];
  if (mine.sequence != call.sequence || mine.same_call(call)) return true;
  std::string caller;
  if (const auto held = group_.hold()) {
    for (const auto& run : group_.queue->active) {
      if (run->lane() >= 0 && run->call().sequence == call.sequence) {
        caller = run->completion().caller();
      }
    }
  }
  if (caller.empty() && Clock::now() - theirs.known < kCallerBound) return false;
  group_.fail(Status(
      Code::invalid_argument,
      "ranks disagree about collective #" + std::to_string(call.sequence) + ": rank " +
          std::to_string(group_.rank) + " called " + describe_call(mine) + at_line(caller) +
          ", rank " + std::to_string(theirs.peer) + " called " + describe_call(call) +
          at_line(theirs.news.caller) +
          "; make the same calls in the same order on every rank (another history: an earlier call "
          "differed already)",
      group_.rank, theirs.peer));
  return true;
}

void CallWatch::note_waiting(uint64_t sequence, int rank) {
  waiting_[sequence].push_back(rank);
  while (waiting_.size() > kRemembered) waiting_.erase(waiting_.begin());
}

// Floods the refusal only while a peer waits in this call. This rank may yet make the right call.
void CallWatch::flood_refusal() {
  if (!refusal_ || refusal_->reported || early_.count(group_.next_call) == 0) return;
  refusal_->reported = true;
  group_.flood(RefusalNews{.sequence = group_.next_call, .why = refusal_->why});
}

// Fails the group if the run waits for a rank that has left.
bool CallWatch::awaits_departed(const Run& run) {
  const bool message = run.lane() < 0;
  for (const auto& [peer, departure] : group_.departures) {
    const bool awaited = message
                             ? run.plan().spec.root == peer && Clock::now() - departure.at > kStall
                             : departure.news.calls <= run.call().sequence;
    if (!awaited) continue;
    group_.fail(group_.left_too_early(peer, "is in " + run.describe()));
    return true;
  }
  return false;
}

std::shared_ptr<Run> CallWatch::check_stalls() {
  std::vector<std::shared_ptr<Run>> active;
  {
    const auto held = group_.hold();
    if (!held) return nullptr;
    active = group_.queue->active;
    if (!group_.queue->pending.empty()) active.push_back(group_.queue->pending.front());
  }
  std::shared_ptr<Run> oldest, nearest;
  for (const auto& run : active) {
    if (run->age() < kStall) continue;
    if (awaits_departed(*run)) return nullptr;
    if (run->lane() < 0) continue;
    if (!oldest || run->call().sequence < oldest->call().sequence) oldest = run;
    if (!nearest || run->deadline().left() < nearest->deadline().left()) nearest = run;
  }
  if (!oldest) return nullptr;
  warn_of_refusal(*oldest);
  flood_stall(*oldest);
  return nearest;
}

void CallWatch::warn_of_refusal(const Run& run) {
  const auto found = peer_refusals_.find(run.call().sequence);
  if (found == peer_refusals_.end()) return;
  Refusal& refusal = found->second;
  if (!refusal.reported) {
    log(LogLevel::warning, "this collective may never complete: " + refusal.why.text(),
        group_.rank);
  }
  refusal.reported = true;
  if (run.deadline().left() < kRefusalMargin) group_.fail(refusal.why);
}

void CallWatch::flood_stall(Run& run) {
  const uint64_t sequence = run.call().sequence;
  if (stalls_seen_ > sequence) return;
  const bool known = waiting_.count(sequence) > 0;
  const bool turn = run.age() >= kStall + wait_of_turns(group_.rank, kTurn);
  if (!known && (!turn || Clock::now() - last_flood_ < kStall)) return;
  stalls_seen_ = sequence + 1;
  ++stalls_;
  note_waiting(sequence, group_.rank);
  log(LogLevel::info,
      run.describe() + " has not completed within a second; ranks known to wait in it: " +
          joined(waiting_[sequence]),
      group_.rank);
  if (known) return;  // the calls were compared already
  last_flood_ = Clock::now();
  group_.flood(stall_of(run));
  log(LogLevel::debug, "tells the other ranks that it waits in " + run.describe(), group_.rank);
}

}  // namespace hetcomm
