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
  if (!group_.cause.ok() || now - regular_since_ < peer_timeout_) return;
  // Keep-alive asks after half the peer timeout.
  const auto doubted = peer_timeout_ / 2 + Monitor::interval / 2;
  for (const auto& [peer, host, process] : group_.control.silences()) {
    if (group_.left(peer)) continue;
    const std::string rank = "rank " + std::to_string(peer);
    if (host >= doubted) {
      group_.control.knock(peer);
      group_.executor.poll_by(now + peer_timeout_ / kPollsInBound);
    }
    if (host >= peer_timeout_) {
      return group_.fail(
          Status(Code::peer_failed,
                 rank +
                     " is unreachable: its host, or the network to it, has given no sign of life, "
                     "or acknowledged nothing, for " +
                     format_seconds(host) +
                     "; look at the host and its network, or raise HETCOMM_PEER_TIMEOUT",
                 group_.rank, peer));
    }
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
  const auto held = group_.executor.lock();
  auto& silent = group_.queue->silent;
  if (news.ended) return silent.erase(news.rank) > 0;
  return silent.emplace(news.rank, Clock::now() - peer_timeout_).second;
}

}  // namespace hetcomm
