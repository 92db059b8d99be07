#pragma once

#include <chrono>

#include "health/call_watch.h"
#include "health/inquiries.h"
#include "health/watched_group.h"

namespace hetcomm {

// Makes one failure of the ranks that are lost, so that all survivors report the same set. A rank
// that notices a loss tells all ranks at once. After the grace the lowest survivor calls the roll,
// and floods the failure when each rank has answered or is lost. If that survivor stands still, the
// next one decides.
class Losses {
 public:
  Losses(WatchedGroup& group, const CallWatch& calls, Inquiries& inquiries);

  void share_host();  // all ranks of the group are on one host
  // Fails the group once the set of lost ranks is certain.
  void check();

 private:
  int survivors_below() const;
  void note_cut_off();
  void call_roll();

  WatchedGroup& group_;
  const CallWatch& calls_;
  Inquiries& inquiries_;
  std::chrono::milliseconds grace_;  // after a connection has ended without a goodbye
  Clock::time_point roll_due_{};     // its end, once this rank has called it
  bool roll_over_ = false;
};

}  // namespace hetcomm
