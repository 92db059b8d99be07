#include "base/timeout.h"
#include "torch/backend.h"

namespace hetcomm {

// Posts a receive only for a message that has arrived, so a timeout leaves no receive behind.
void TorchBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  using std::chrono::milliseconds;
  // Users' tags are not negative, so tags with the highest bit are the group's own. Each barrier
  // has its own tag, so a late message does not match a later barrier.
  constexpr uint32_t kOwnTag = 1u << 31;
  const uint32_t tag = kOwnTag | (monitored_barriers_++ & (kOwnTag - 1));
  const std::chrono::nanoseconds timeout = with_python_errors([&] {
    return options.timeout == c10d::kUnsetTimeout ? communicator_->timeout()
                                                  : torch_timeout(options.timeout);
  });
  const std::string within =
      " in " + std::to_string(std::chrono::duration_cast<milliseconds>(timeout).count()) + " ms";
  const Deadline deadline(timeout);
  const auto receive_from = [&](int from) {
    const bool arrived = wait_interruptibly(
        [&](auto time) { return communicator_->await_message(from, tag, Deadline(time)); },
        deadline.left(), *reference_, [] { return std::string("monitored_barrier"); });
    if (!arrived) return false;
    int8_t byte = 0;
    check(communicator_->recv(&byte, Dtype::int8, 1, from, tag, {}).wait());
    return true;
  };
  const auto send_to = [&](int to) {
    static const int8_t byte = 0;
    check(communicator_->send(&byte, Dtype::int8, 1, to, tag, {}).wait());
  };
  with_python_errors([&] {
    if (rank_ != 0) {
      send_to(0);
      if (receive_from(0)) return;
      throw Error(Status(Code::timeout,
                         "Rank " + std::to_string(rank_) +
                             " successfully reached monitoredBarrier, but received errors while "
                             "waiting for send/recv from rank 0: no answer" +
                             within + "; rank 0's error says which rank did not come",
                         rank_, 0));
    }
    std::vector<int> missing;
    for (int rank = 1; rank < size_ && (missing.empty() || wait_all_ranks); ++rank) {
      if (!receive_from(rank)) missing.push_back(rank);
    }
    if (!missing.empty()) {
      throw Error(Status(Code::timeout,
                         (missing.size() == 1 ? "Rank " : "Ranks ") + rank_list(missing, ", ") +
                             " failed to pass monitoredBarrier" + within +
                             ": Rank 0 timed out in monitoredBarrier; look at what they do instead",
                         0, missing[0]));
    }
    for (int rank = 1; rank < size_; ++rank) send_to(rank);
  });
}

}  // namespace hetcomm
