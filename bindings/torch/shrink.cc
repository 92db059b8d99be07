#include <algorithm>

#include "torch/backend.h"

namespace hetcomm {

// The survivors meet again, in a store of the old group's, as a group of their own. Those left out
// may be dead: nobody waits for them. The old group is destroyed by torch afterwards.
c10::intrusive_ptr<c10d::Backend> TorchBackend::shrink(
    const std::vector<int64_t>& excluded, int flags,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  return with_python_errors([&]() -> c10::intrusive_ptr<c10d::Backend> {
    const auto leaves = [&](int rank) {
      return std::find(excluded.begin(), excluded.end(), rank) != excluded.end();
    };
    std::string left_out;
    int before = 0, survivors = 0;
    for (int rank = 0; rank < size_; ++rank) {
      if (leaves(rank)) {
        left_out += (left_out.empty() ? "" : "-") + std::to_string(rank);
        continue;
      }
      before += rank < rank_;
      ++survivors;
    }
    if (leaves(rank_)) {
      throw Error(Status(Code::invalid_argument,
                         "shrink: expected to be called by survivors only; this rank is left out",
                         rank_));
    }
    constexpr int kAbort = 1;  // torch.distributed.distributed_c10d.SHRINK_ABORT
    if (flags == kAbort) abort();
    const std::string name = name_ + " without " + left_out;
    // Counted, since what an earlier group of the same ranks has written is still there.
    const std::string place = "shrunk/" + left_out + "/" + std::to_string(shrinks_[left_out]++);
    return child(store_, place, before, survivors, options, name);
  });
}

}  // namespace hetcomm
