#pragma once

#include <map>
#include <string>
#include <utility>

#include "base/config.h"
#include "base/rate_limit.h"
#include "health/watched_group.h"

namespace hetcomm {

// Sends heartbeats, and judges their absence. A host or network without a sign of life is a
// failure. A process is only reported: it may be in a debugger, or slow.
class SilenceWatch {
 public:
  explicit SilenceWatch(WatchedGroup& group);

  void check();
  // Told by another rank.
  void on_news(const SilenceNews& news) { note(news); }
  void forget(int peer);  // which has left

 private:
  void tell(const SilenceNews& news, const std::string& words);
  bool note(const SilenceNews& news);  // false if it was known
  void publish();

  WatchedGroup& group_;
  const std::chrono::milliseconds peer_timeout_ = peer_timeout();
  Clock::time_point last_beat_{}, last_look_{}, regular_since_{};
  std::map<int, Clock::time_point> silent_;  // neighbours that this rank has found silent; since
  std::map<int, Clock::time_point> silent_of_all_;  // found by any rank, for the queue
  bool published_ = true;                           // the queue has them
  RateLimit<std::pair<int, bool>> log_limit_;       // by rank, and whether the silence ended
};

}  // namespace hetcomm
