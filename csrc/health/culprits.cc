// A rank of an island does not see which other member is late. So before a collective times out,
// one rank asks all ranks for their state, and tells all ranks the likely culprits. The error of
// the timeout then names them.

#include <algorithm>

#include "base/joined.h"
#include "base/log.h"
#include "health/health.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

// An inquiry takes a second at most, and a poll comes every half second.
constexpr auto kBeforeTimeout = 3s;
// A culprit counts for so long: until the timeout, also if the timeout is noticed late.
constexpr auto kCounts = kBeforeTimeout + 1s;
constexpr size_t kMostCulprits = 3;

}  // namespace

// Under the mutex.
void Health::inquire_before_timeout(const Run& run) {
  const uint64_t sequence = run.call().sequence;
  const auto now = Clock::now();
  // An operation that another group has held up has its time once more.
  if (asked_about_ > sequence && now - asked_at_ < 2 * kBeforeTimeout) return;
  const auto wait = std::chrono::duration_cast<Clock::duration>(run.deadline().left() -
                                                                kBeforeTimeout + turn_to_inquire());
  if (wait > 0s) {
    if (wait < interval) executor_.poll_by(now + wait);
    return;
  }
  note_inquiry(sequence);
  flood(ask(run.describe() + " is close to its timeout",
            {.occasion = Inquiry::Occasion::timeout, .sequence = sequence},
            [this, sequence](const GroupState& state) { blame(sequence, state); }));
}

void Health::blame(uint64_t sequence, const GroupState& state) {
  std::vector<Finding> found = findings(state);
  std::lock_guard lock(mutex_);
  if (!watching_ || said_goodbye_) return;  // the inquiry was cut short
  {
    const auto held = executor_.lock();  // the error names silent ranks anyway
    std::erase_if(found, [&](const Finding& one) {
      const auto departure = departures_.find(one.rank);
      const bool rightly_left =
          departure != departures_.end() && departure->second.calls > sequence;
      return rightly_left || queue_->silent.contains(one.rank);
    });
  }
  if (found.empty()) return;
  const int culprit = found.size() == 1 ? found.front().rank : -1;
  std::vector<std::string> words;
  for (const Finding& one : found) words.push_back(one.text);
  if (found.size() > kMostCulprits) {
    words.resize(kMostCulprits);
    words.push_back("and " + std::to_string(found.size() - kMostCulprits) + " more");
  }
  const Status why(Code::timeout, joined(words, "; "), rank_, culprit);
  note_culprit(sequence, why);
  control_.flood(News{.kind = News::Kind::culprit, .sequence = sequence, .why = why}.pack());
}

void Health::note_inquiry(uint64_t sequence) {
  asked_about_ = std::max(asked_about_, sequence + 1);
  asked_at_ = Clock::now();
}

// The first of several findings counts. Later inquiries may have lost answers to the first.
void Health::note_culprit(uint64_t sequence, const Status& why) {
  const auto now = Clock::now();
  {
    const auto held = executor_.lock();
    auto& culprit = queue_->culprit;
    if (culprit && culprit->sequence == sequence && now < culprit->until) return;
    culprit = {sequence, why.details().message, why.details().peer, now, now + kCounts};
  }
  log(LogLevel::info,
      "collective #" + std::to_string(sequence) +
          " is close to its timeout; likely culprit: " + why.details().message,
      rank_);
}

}  // namespace hetcomm
