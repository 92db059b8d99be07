// Heartbeats, and what follows from their absence. A host or network without a sign of life is a
// failure. A process is only reported: it may be in a debugger, or slow.

#include <utility>

#include "base/config.h"
#include "base/log.h"
#include "health/health.h"

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

void Health::check_silence() {
  const auto now = Clock::now();
  if (now - std::exchange(last_look_, now) > kLongestAbsence) regular_since_ = now;
  if (now - last_beat_ >= kBeat) {
    last_beat_ = now;
    control_.beat();
  }
  if (!cause_.ok() || now - regular_since_ < peer_timeout_) return;
  for (const auto& [peer, host, process] : control_.silences()) {
    if (departures_.count(peer) > 0) continue;
    if (host >=
        peer_timeout_ / 2 + Monitor::interval / 2) {  // keep-alive asks after half the peer timeout
      control_.knock(peer);
      executor_.poll_by(now + peer_timeout_ / kPollsInBound);
    }
    if (host >= peer_timeout_) {
      fail(Status(Code::peer_failed,
                  "rank " + std::to_string(peer) +
                      " is unreachable: its host, or the network to "
                      "it, has given no sign of life, or acknowledged nothing, for " +
                      format_seconds(host) +
                      "; look at the host and its network, or raise HETCOMM_PEER_TIMEOUT",
                  rank_, peer));
      return;
    }
    const auto known = silent_.find(peer);
    if (process >= peer_timeout_ && known == silent_.end()) {
      silent_[peer] = now - process;
      tell_silence(peer, describe_silence(peer, process), false);
    } else if (process < peer_timeout_ && known != silent_.end()) {
      tell_silence(peer,
                   "rank " + std::to_string(peer) + " gives signs of life again, after " +
                       format_seconds(now - known->second),
                   true);
      silent_.erase(known);
    }
  }
}

// Writes a line into the log, unless another rank was faster or there was one a short time ago.
void Health::tell_silence(int peer, const std::string& words, bool ended) {
  control_.flood(News{.kind = News::Kind::silence, .about = peer, .ended = ended}.pack());
  if (!note_silence(peer, ended)) return;
  const auto [last, first] = last_alarm_.try_emplace({peer, ended}, Clock::now());
  if (!first && Clock::now() - last->second < kQuiet) return;
  last->second = Clock::now();
  log(LogLevel::warning, words, rank_);
}

// Noticed by this rank, or told by another.
bool Health::note_silence(int peer, bool ended) {
  const auto held = executor_.lock();
  if (ended) return queue_->silent.erase(peer) > 0;
  return queue_->silent.emplace(peer, Clock::now() - peer_timeout_).second;
}

}  // namespace hetcomm
