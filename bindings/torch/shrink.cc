#include <algorithm>

#include "torch/backend.h"

namespace hetcomm {

// The survivors form a group of their own, through the old group's store. No rank waits for
// excluded ranks, which may be dead. torch destroys the old group afterwards.
c10::intrusive_ptr<c10d::Backend> TorchBackend::shrink(
    const std::vector<int64_t>& excluded, int flags,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  return with_python_errors([&]() -> c10::intrusive_ptr<c10d::Backend> {
    std::vector<int> left_out, survivors;
    for (int rank = 0; rank < size_; ++rank) {
      const bool leaves = std::find(excluded.begin(), excluded.end(), rank) != excluded.end();
      (leaves ? left_out : survivors).push_back(rank);
    }
    const auto own = std::find(survivors.begin(), survivors.end(), rank_);
    if (own == survivors.end()) {
      throw Error(Status(Code::invalid_argument,
                         "shrink: expected to be called by survivors only; this rank is left out",
                         rank_));
    }
    const auto why_stop = [this, survivors] {
      const Status lost = communicator_->lost_among(survivors);
      if (lost.ok()) return lost;
      Status::Details details = lost.details();
      details.message =
          "shrink: expected living ranks besides those left out; got more failed ones: " +
          details.message + "; leave out all ranks of failed_ranks";
      return Status(std::move(details));
    };
    check(why_stop());
    constexpr int kAbort = 1;  // torch.distributed.distributed_c10d.SHRINK_ABORT
    if (flags == kAbort) abort();
    const std::string names = rank_list(left_out, "-");
    // The count keeps apart groups of the same ranks: the store has the keys of earlier groups.
    const std::string prefix = "shrunk/" + names + "/" + std::to_string(shrinks_[names]++);
    return child(store_, prefix, static_cast<int>(own - survivors.begin()),
                 static_cast<int>(survivors.size()), options, name_ + " without " + names,
                 why_stop);
  });
}

}  // namespace hetcomm
