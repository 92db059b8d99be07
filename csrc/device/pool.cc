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

void* Pool::take(size_t bytes) {
  const size_t size = rounded(bytes);
  {
    std::lock_guard lock(mutex_);
    auto found = idle_.find(size);
    if (found != idle_.end()) {
      void* block = found->second.back();
      found->second.pop_back();
      if (found->second.empty()) idle_.erase(found);
      kept_ -= static_cast<int64_t>(size);
      out_[block] = size;
      return block;
    }
  }
  void* block = make_room_and_take(size);
  std::lock_guard lock(mutex_);
  out_[block] = size;
  return block;
}

void* Pool::make_room_and_take(size_t size) {
  try {
    return make_(size);
  } catch (const Error&) {
    std::map<size_t, std::vector<void*>> idle;
    {
      std::lock_guard lock(mutex_);
      idle.swap(idle_);
      kept_ = 0;
    }
    if (idle.empty()) throw;
    for (const auto& [ignored, blocks] : idle) std::for_each(blocks.begin(), blocks.end(), free_);
  }
  return make_(size);
}

void Pool::give(void* block) {
  if (block == nullptr) return;
  std::vector<void*> excess;
  {
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

int64_t Pool::kept() const {
  std::lock_guard lock(mutex_);
  return kept_;
}

}  // namespace hetcomm
