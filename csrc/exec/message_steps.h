#pragma once

#include <memory>
#include <vector>

#include "exec/operation.h"
#include "exec/paths.h"
#include "exec/run_memory.h"

namespace hetcomm {

// Carries out the sends and receives of one run. Tags let both ends match messages, and notice that
// they disagree about the call. Owned by a run, to whose members it refers; used under the
// executor's lock.
class MessageSteps {
 public:
  MessageSteps(const Plan& plan, const RunMemory& memory, Paths& paths, const Operation& operation);

  // Posts a step; fails if no link leads to the peer.
  Status post(int step);
  bool posted() const { return unposted_ == 0; }  // all steps are posted
  bool idle() const { return in_flight_.empty(); }
  const std::vector<int>& in_flight() const { return in_flight_; }
  // Calls ended(step, status) for each message that is over; true if there are any.
  template <typename Ended>
  bool poll(const Ended& ended);
  // Cancels all messages in flight. The transport releases their memory once idle().
  void cancel();

 private:
  // Removes the i-th message in flight; returns its outcome.
  Status reap(size_t i);

  const Plan& plan_;
  const RunMemory& memory_;
  Paths& paths_;
  const Operation& operation_;
  const bool is_user_message_;           // else a message of a collective
  const uint64_t hash_;                  // of the call; the dtype of a user's message
  std::unique_ptr<Request[]> requests_;  // by step
  std::vector<int> in_flight_;
  int unposted_;
};

template <typename Ended>
bool MessageSteps::poll(const Ended& ended) {
  bool any = false;
  for (size_t i = 0; i < in_flight_.size();) {
    const int step = in_flight_[i];
    if (!requests_[step].done) {
      ++i;
      continue;
    }
    any = true;
    ended(step, reap(i));
  }
  return any;
}

}  // namespace hetcomm
