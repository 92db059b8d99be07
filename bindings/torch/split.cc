#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/timeout.h"
#include "torch/backend.h"

namespace hetcomm {
namespace {

void check_ranks(const std::vector<int>& ranks, int size) {
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  const bool valid = !sorted.empty() && sorted.front() >= 0 && sorted.back() < size &&
                     std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  if (valid) return;
  throw_invalid("split", "ranks of the group, each once, from 0 to " + std::to_string(size - 1),
                "[" + rank_list(ranks, ", ") + "]", "ranks count within the group that is split");
}

}  // namespace

std::string rank_list(const std::vector<int>& ranks, const char* separator) {
  std::string text;
  for (int rank : ranks) text += (text.empty() ? "" : separator) + std::to_string(rank);
  return text;
}

// A new communicator, not a part of the parent's: its members may share a better network than the
// parent's islands, and only members take part in its set-up.
c10::intrusive_ptr<c10d::Backend> TorchBackend::child(const c10::intrusive_ptr<c10d::Store>& store,
                                                      const std::string& prefix, int rank, int size,
                                                      const c10::intrusive_ptr<Options>& options,
                                                      const std::string& name,
                                                      std::function<Status()> why_stop) {
  communicator_->check_process();
  const bool timed = options && options->timeout != c10d::kUnsetTimeout;
  const auto* own = dynamic_cast<const GroupOptions*>(options.get());
  const auto made = c10::make_intrusive<TorchBackend>(
      c10::make_intrusive<c10d::PrefixStore>(prefix, store), rank, size,
      timed ? torch_timeout(options->timeout) : communicator_->timeout(), name, vendor_,
      communicator_->device() ? communicator_->device()->index() : -1,
      own ? own->bridge_codec : codec_, std::move(why_stop));
  ++children_;
  return made;
}

// Torch may ask for one child several times, once for each device type of this backend. All calls
// get the first child.
template <typename Make>
c10::intrusive_ptr<c10d::Backend> TorchBackend::child_for(
    const c10::intrusive_ptr<c10d::Store>& store, const Make& make) {
  if (last_child_store_ == store) {
    if (auto made = last_child_.lock()) return made;
  }
  auto made = make();
  last_child_store_ = store;
  last_child_ = c10::weak_intrusive_ptr<c10d::Backend>(made);
  return made;
}

c10::intrusive_ptr<c10d::Backend> TorchBackend::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  return with_python_errors([&]() -> c10::intrusive_ptr<c10d::Backend> {
    check_ranks(ranks, size_);
    const auto own = std::find(ranks.begin(), ranks.end(), rank_);
    if (own == ranks.end()) return nullptr;
    return child_for(store, [&] {
      // The prefix of torch's store counts the groups of this process. Other members may have made
      // another number of groups, so members meet in the parent's store.
      const std::string members = rank_list(ranks, "-");
      const std::string prefix = "split/" + members + "/" + std::to_string(splits_[members]++);
      return child(store_, prefix, static_cast<int>(own - ranks.begin()),
                   static_cast<int>(ranks.size()), options, name_ + " ranks " + members);
    });
  });
}

c10::intrusive_ptr<c10d::Backend> TorchBackend::merge(
    const c10::intrusive_ptr<c10d::Store>& store,
    const c10::intrusive_ptr<c10d::Backend::Options>& options, const int& rank, const int& size) {
  return with_python_errors([&] {
    return child_for(
        store, [&] { return child(store, "hetcomm", rank, size, options, name_ + " merged"); });
  });
}

c10::intrusive_ptr<c10d::Backend::Options> TorchBackend::getBackendOptions() {
  return c10::make_intrusive<GroupOptions>(
      std::chrono::duration_cast<std::chrono::milliseconds>(communicator_->timeout()), codec_);
}

}  // namespace hetcomm
