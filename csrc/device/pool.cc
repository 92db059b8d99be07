#include "device/pool.h"

#include <algorithm>
#include <bit>

#include "base/status.h"

namespace hetcomm {

Pool::Pool(Make make, Free free, int64_t most_kept)
    : make_(std::move(make)), free_(std::move(free)), most_kept_(most_kept) {}

size_t Pool::rounded(size_t bytes) {
  size_t power = std::bit_ceil(std::max<size_t>(bytes, 256));
  if (power <= size_t{1} << 20) return power;
  size_t step = power / 8;
  return (bytes + step - 1) / step * step;
}

void* Pool::take_idle(size_t lowest, size_t highest) {
  std::lock_guard lock(mutex_);
  auto found = idle_.lower_bound(lowest);
  if (found == idle_.end() || found->first > highest) return nullptr;
  void* block = found->second.back();
  kept_ -= static_cast<int64_t>(found->first);
  out_[block] = found->first;
  found->second.pop_back();
  if (found->second.empty()) idle_.erase(found);
  return block;
}

void* Pool::take(size_t bytes) {
  const size_t size = rounded(bytes);
  if (void* block = take_idle(size, 2 * size)) return block;
  try {
    void* block = make_(size);
    std::lock_guard lock(mutex_);
    out_[block] = size;
    return block;
  } catch (const Error&) {
    if (void* block = take_idle(size, SIZE_MAX)) return block;
    throw;
  }
}

void Pool::give(void* block) {
  if (block == nullptr) return;
  std::lock_guard lock(mutex_);
  auto found = out_.find(block);
  if (found == out_.end()) {
    throw Error(Code::invalid_argument,
                "expected memory of this pool that is in use; got another address or a second "
                "release");
  }
  idle_[found->second].push_back(block);
  kept_ += static_cast<int64_t>(found->second);
  out_.erase(found);
}

void Pool::trim() {
  std::vector<void*> excess;
  {
    std::lock_guard lock(mutex_);
    while (kept_ > most_kept_) {  // the largest first: few calls, much room
      auto largest = std::prev(idle_.end());
      excess.push_back(largest->second.back());
      largest->second.pop_back();
      kept_ -= static_cast<int64_t>(largest->first);
      if (largest->second.empty()) idle_.erase(largest);
    }
  }
  std::for_each(excess.begin(), excess.end(), free_);
}

}  // namespace hetcomm
