#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exec/operation.h"
#include "exec/paths.h"
#include "exec/run_memory.h"

namespace hetcomm {

// The steps of one run that the transport carries out: sends and receives, each tagged so that both
// ends match them and find out if they disagree about the call. Owned by a run, to whose members it
// refers; used under the executor's lock.
class MessageSteps {
 public:
  MessageSteps(const Plan& plan, const RunMemory& memory, Paths& paths, const Operation& operation);

  // Hands a step to the transport; fails if no link leads to the peer.
  Status post(int step);
  bool posted() const { return unposted_ == 0; }  // every step
  bool idle() const { return in_flight_.empty(); }
  const std::vector<int>& in_flight() const { return in_flight_; }
  // Calls ended(step, status) for each message that is over; true if any is.
  template <typename Ended>
  bool poll(const Ended& ended);
  // Has the transport release the memory of what is in flight; poll() until idle().
  void cancel();

 private:
  // Takes the i-th out of flight; what it came to.
  Status take(size_t i);

  const Plan& plan_;
  const RunMemory& memory_;
  Paths& paths_;
  const Operation& operation_;
  const uint64_t hash_;
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
    ended(step, take(i));
  }
  return any;
}

}  // namespace hetcomm
