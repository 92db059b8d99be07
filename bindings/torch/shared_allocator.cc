#include "torch/shared_allocator.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>

#include "base/fork.h"
#include "island/shm/shm.h"

namespace hetcomm {
namespace {

// Of all that nobody uses; the oldest goes first.
constexpr size_t kMostKept = 256 << 20;

class Kept;

struct Block {
  std::shared_ptr<void> memory;
  size_t bytes;
  Kept* of;
};

// What tensors of this process have given back.
class Kept {
 public:
  std::unique_ptr<Block> take(size_t bytes) {
    {
      std::lock_guard lock(mutex_);
      const auto found = std::find_if(blocks_.rbegin(), blocks_.rend(),
                                      [&](const auto& block) { return block->bytes == bytes; });
      if (found != blocks_.rend()) {
        std::unique_ptr<Block> block = std::move(*found);
        blocks_.erase(std::next(found).base());
        bytes_ -= bytes;
        return block;
      }
    }
    return std::make_unique<Block>(allocate_shared(bytes), bytes, this);
  }

  void keep(std::unique_ptr<Block> block) {
    if (mark_.inherited() || block->bytes > kMostKept) return;
    std::deque<std::unique_ptr<Block>> dropped;  // given back without the lock
    std::lock_guard lock(mutex_);
    bytes_ += block->bytes;
    blocks_.push_back(std::move(block));
    for (; bytes_ > kMostKept; blocks_.pop_front()) {
      bytes_ -= blocks_.front()->bytes;
      dropped.push_back(std::move(blocks_.front()));
    }
  }

 private:
  const ProcessMark mark_;
  std::mutex mutex_;
  std::deque<std::unique_ptr<Block>> blocks_;  // oldest first, under the mutex
  size_t bytes_ = 0;                           // of all of them
};

void release(void* released) {
  std::unique_ptr<Block> block(static_cast<Block*>(released));
  block->of->keep(std::move(block));
}

}  // namespace

SharedAllocator& SharedAllocator::instance() {
  static auto* const made = new SharedAllocator;
  return *made;
}

c10::DataPtr SharedAllocator::allocate(size_t bytes) {
  if (bytes == 0) return {nullptr, c10::Device(c10::kCPU)};
  Block* block = of_process<Kept>().take(bytes).release();
  return {block->memory.get(), block, &release, c10::Device(c10::kCPU)};
}

void SharedAllocator::copy_data(void* target, const void* source, size_t bytes) const {
  default_copy_data(target, source, bytes);
}

}  // namespace hetcomm
