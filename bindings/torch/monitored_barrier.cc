#include "torch/backend.h"

namespace hetcomm {
namespace {

// User tags are checked not to be negative, so those with the highest bit are free for the group's
// own messages.
constexpr uint32_t kOwnTag = 1u << 31;

std::string listed(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "Rank " : "Ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

}  // namespace

// A receive is posted only for a word that has arrived, so that none is left behind by a rank that
// gives up.
void TorchBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  using std::chrono::milliseconds;
  // Each barrier has a tag of its own, so that what comes late for one is not taken for another.
  const uint32_t tag = kOwnTag | (monitored_++ & (kOwnTag - 1));
  const milliseconds timeout =
      options.timeout == c10d::kUnsetTimeout
          ? std::chrono::duration_cast<milliseconds>(communicator_->timeout())
          : options.timeout;
  const std::string within = " in " + std::to_string(timeout.count()) + " ms";
  const Deadline deadline(timeout_of(timeout));
  const auto heard = [&](int from) {
    const bool came = wait_interruptibly(
        [&](auto time) { return communicator_->await_message(from, tag, Deadline(time)); },
        deadline.left(), *reference_, [] { return std::string("monitored_barrier"); });
    if (!came) return false;
    int8_t word = 0;
    check(communicator_->recv(&word, Dtype::int8, 1, from, tag, {}).wait());
    return true;
  };
  const auto tell = [&](int to) {
    static const int8_t word = 0;
    check(communicator_->send(&word, Dtype::int8, 1, to, tag, {}).wait());
  };
  with_python_errors([&] {
    if (rank_ != 0) {
      tell(0);
      if (heard(0)) return;
      throw Error(Status(Code::timeout,
                         "Rank " + std::to_string(rank_) +
                             " successfully reached monitoredBarrier, but received errors while "
                             "waiting for send/recv from rank 0: no answer" +
                             within + "; rank 0's error says which rank did not come",
                         rank_, 0));
    }
    std::vector<int> missing;
    for (int rank = 1; rank < size_ && (missing.empty() || wait_all_ranks); ++rank) {
      if (!heard(rank)) missing.push_back(rank);
    }
    if (!missing.empty()) {
      throw Error(Status(Code::timeout,
                         listed(missing) + " failed to pass monitoredBarrier" + within +
                             ": Rank 0 timed out in monitoredBarrier; look at what they do instead",
                         0, missing[0]));
    }
    for (int rank = 1; rank < size_; ++rank) tell(rank);
  });
}

}  // namespace hetcomm
