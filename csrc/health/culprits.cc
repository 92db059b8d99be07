// A rank of an island does not see which other member is late. So before a collective times out,
// one rank asks all ranks for their state, and tells all ranks the likely culprits. The error of
// the timeout then names them.

#include <algorithm>

#include "base/log.h"
#include "health/health.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

// An inquiry takes a second at most, and a poll comes every half second.
constexpr auto kBeforeTimeout = 3s;
constexpr size_t kMostCulprits = 3;

}  // namespace

// Under the mutex.
void Health::inquire_before_timeout(const Run& run) {
  const uint64_t sequence = run.call().sequence;
  if (asked_about_ > sequence || run.deadline().left() > kBeforeTimeout) return;
  asked_about_ = sequence + 1;
  flood(ask(run.describe() + " is close to its timeout",
            {.occasion = Inquiry::Occasion::timeout, .sequence = sequence},
            [this, sequence](const GroupState& state) { blame(sequence, state); }));
}

void Health::blame(uint64_t sequence, const GroupState& state) {
  std::vector<Finding> found = findings(state);
  std::lock_guard lock(mutex_);
  {
    const auto held = executor_.lock();  // the error names silent ranks anyway
    std::erase_if(found, [&](const auto& one) { return queue_->silent.contains(one.rank); });
  }
  if (found.empty()) return;
  const int culprit = found.size() == 1 ? found.front().rank : -1;
  std::string words;
  for (size_t i = 0; i < std::min(found.size(), kMostCulprits); ++i) {
    words += (i > 0 ? "; " : "") + found[i].text;
  }
  if (found.size() > kMostCulprits) {
    words += "; and " + std::to_string(found.size() - kMostCulprits) + " more";
  }
  const Status why(Code::timeout, words, rank_, culprit);
  note_culprit(sequence, why);
  if (!watching_ || said_goodbye_) return;
  control_.flood(News{.kind = News::Kind::culprit, .sequence = sequence, .why = why}.pack());
}

void Health::note_culprit(uint64_t sequence, const Status& why) {
  log(LogLevel::info,
      "collective #" + std::to_string(sequence) +
          " is close to its timeout; likely culprit: " + why.details().message,
      rank_);
  const auto held = executor_.lock();
  queue_->culprit = {sequence, why.details().message, why.details().peer, Clock::now()};
}

}  // namespace hetcomm
