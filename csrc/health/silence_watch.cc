#include "health/silence_watch.h"

#include "base/log.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

// Polls come more often after news.
constexpr auto kBeat = Monitor::interval * 4 / 5;
// A rank that looked less often than this was stopped or starved itself. It judges no other rank by
// the time that it was away. If all ranks stop at once, none of them judges another.
constexpr auto kLongestAbsence = 2 * Monitor::interval;
constexpr int kPollsInBound = 20;  // while a host is in doubt
// A line in the log about one silent rank in this time.
constexpr auto kQuiet = 60s;

}  // namespace

SilenceWatch::SilenceWatch(WatchedGroup& group) : group_(group), log_limit_(kQuiet) {}

void SilenceWatch::check() {
  const auto now = Clock::now();
  if (now - std::exchange(last_look_, now) > kLongestAbsence) regular_since_ = now;
  if (now - last_beat_ >= kBeat) {
    last_beat_ = now;
    group_.control.beat();
  }
  if (!published_) publish();
  if (now - regular_since_ < peer_timeout_) return;
  // Keep-alive asks after half the peer timeout.
  const auto doubted = peer_timeout_ / 2 + Monitor::interval / 2;
  for (const auto& [peer, host, process] : group_.control.silences()) {
    if (group_.left(peer) || group_.lost.contains(peer)) continue;
    const std::string rank = "rank " + std::to_string(peer);
    if (host >= doubted) {
      group_.control.knock(peer);
      group_.executor.poll_by(now + peer_timeout_ / kPollsInBound);
    }
    if (host >= peer_timeout_) {
      group_.tell_loss({.rank = peer, .silence = static_cast<uint64_t>(host.count())});
      continue;
    }
    if (!group_.cause.ok()) continue;
    const auto known = silent_.find(peer);
    if (process >= peer_timeout_ && known == silent_.end()) {
      silent_[peer] = now - process;
      tell({.rank = peer, .ended = false}, describe_silence(peer, process));
    } else if (process < peer_timeout_ && known != silent_.end()) {
      tell({.rank = peer, .ended = true},
           rank + " gives signs of life again, after " + format_seconds(now - known->second));
      silent_.erase(known);
    }
  }
}

void SilenceWatch::forget(int peer) {
  silent_.erase(peer);
  note({.rank = peer, .ended = true});
}

// Writes a line into the log, unless another rank was faster or there was one a short time ago.
void SilenceWatch::tell(const SilenceNews& news, const std::string& words) {
  group_.flood(news);
  if (note(news) && log_limit_.allows({news.rank, news.ended})) {
    log(LogLevel::warning, words, group_.rank);
  }
}

// Noticed by this rank, or told by another.
bool SilenceWatch::note(const SilenceNews& news) {
  const bool fresh = news.ended
                         ? silent_of_all_.erase(news.rank) > 0
                         : silent_of_all_.emplace(news.rank, Clock::now() - peer_timeout_).second;
  if (fresh) publish();
  return fresh;
}

void SilenceWatch::publish() {
  const auto held = group_.hold();
  published_ = static_cast<bool>(held);
  if (held) group_.queue->silent = silent_of_all_;
}

}  // namespace hetcomm
