// A rank of an island does not see which other member is late. So before a collective times out,
// one rank asks all ranks for their state, and tells all ranks the likely culprits. The error of
// the timeout then names them.

#include <algorithm>

#include "base/joined.h"
#include "base/log.h"
#include "health/inquiries.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

// An inquiry takes a second at most, and a poll comes every half second.
constexpr auto kBeforeTimeout = 3s;
// A culprit counts for so long: until the timeout, also if the timeout is noticed late.
constexpr auto kCounts = kBeforeTimeout + 1s;
constexpr size_t kMostCulprits = 3;

}  // namespace

void Inquiries::ask_before_timeout(const Run& run) {
  const uint64_t sequence = run.call().sequence;
  const auto now = Clock::now();
  // An operation that another group has held up has its time once more.
  if (asked_about_ > sequence && now - asked_at_ < 2 * kBeforeTimeout) return;
  const auto wait = std::chrono::duration_cast<Clock::duration>(run.deadline().left() -
                                                                kBeforeTimeout + wait_to_ask());
  if (wait > 0s) {
    if (wait < Monitor::interval) group_.executor.poll_by(now + wait);
    return;
  }
  note_inquiry_before_timeout(sequence);
  flood(make(run.describe() + " is close to its timeout",
             {.occasion = Inquiry::Occasion::timeout, .sequence = sequence},
             [this, sequence](const GroupState& state) { tell_culprits(sequence, state); }));
}

void Inquiries::tell_culprits(uint64_t sequence, const GroupState& state) {
  std::vector<Culprit> found = culprits(state);
  std::lock_guard lock(group_.mutex);
  if (!group_.active()) return;           // the inquiry was cut short
  if (const auto held = group_.hold()) {  // the error names silent ranks anyway
    std::erase_if(found, [&](const Culprit& one) {
      const auto departure = group_.departures.find(one.rank);
      const bool rightly_left =
          departure != group_.departures.end() && departure->second.news.calls > sequence;
      return rightly_left || group_.queue->silent.contains(one.rank);
    });
  }
  if (found.empty()) return;
  const int culprit = found.size() == 1 ? found.front().rank : -1;
  std::vector<std::string> words;
  for (const Culprit& one : found) words.push_back(one.text);
  if (found.size() > kMostCulprits) {
    words.resize(kMostCulprits);
    words.push_back("and " + std::to_string(found.size() - kMostCulprits) + " more");
  }
  const CulpritNews news{sequence,
                         Status(Code::timeout, joined(words, "; "), group_.rank, culprit)};
  on_news(news);
  group_.flood(news);
}

void Inquiries::note_inquiry_before_timeout(uint64_t sequence) {
  asked_about_ = std::max(asked_about_, sequence + 1);
  asked_at_ = Clock::now();
}

// The first of several opinions counts. Later inquiries may have lost answers to the first.
void Inquiries::on_news(const CulpritNews& news) {
  const auto now = Clock::now();
  const Status::Details& why = news.why.details();
  {
    const auto held = group_.hold();
    if (!held) return;
    auto& culprit = group_.queue->culprit;
    if (culprit && culprit->sequence == news.sequence && now < culprit->until) return;
    culprit = {news.sequence, why.message, why.peer, now, now + kCounts};
  }
  log(LogLevel::info,
      "collective #" + std::to_string(news.sequence) +
          " is close to its timeout; likely culprit: " + why.message,
      group_.rank);
}

}  // namespace hetcomm
