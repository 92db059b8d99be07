#pragma once

#include <mutex>
#include <optional>
#include <vector>

#include "base/rate_limit.h"
#include "health/news.h"
#include "health/pace.h"

namespace hetcomm {

// What rank 0 of a group learnt of its pace so far, and the warnings that it gave. Thread-safe.
class PaceWatch {
 public:
  PaceWatch(Predicted predicted, std::chrono::nanoseconds period);

  // The inquiry that is due: at most one in each period, and none before the state of the last one
  // is judged. Otherwise two states would count the same calls.
  std::optional<Inquiry> due();
  // Judges a state, which takes the time of pricing plans. Warns at most once in ten minutes of the
  // same rank, and of a slow path.
  void judge(const GroupState& state);
  // By rank: the calls to which it came last, of `compared`.
  std::vector<uint64_t> late(uint64_t& compared) const;

 private:
  const Predicted predicted_;
  const std::chrono::nanoseconds period_;
  RateLimit<int> warning_limit_;  // of a rank; -1: of a slow path
  mutable std::mutex mutex_;
  Clock::time_point last_look_ = Clock::now();
  bool awaits_state_ = false;
  std::vector<uint64_t> late_;
  uint64_t compared_ = 0;
  uint64_t since_ = 0;  // the number of the first call that is not yet judged
};

}  // namespace hetcomm
