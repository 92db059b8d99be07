#include "torch/shared_allocator.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>

#include "base/fork.h"
#include "island/shm/shm.h"

namespace hetcomm {
namespace {

// Of all free blocks together.
constexpr size_t kMostFreeBytes = 256 << 20;

class FreeBlocks;

struct Block {
  std::shared_ptr<void> memory;
  size_t bytes;
  FreeBlocks* owner;
};

// Released blocks of this process.
class FreeBlocks {
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

  void add(std::unique_ptr<Block> block) {
    if (mark_.inherited() || block->bytes > kMostFreeBytes) return;
    std::deque<std::unique_ptr<Block>> dropped;  // freed after the lock is released
    std::lock_guard lock(mutex_);
    bytes_ += block->bytes;
    blocks_.push_back(std::move(block));
    for (; bytes_ > kMostFreeBytes; blocks_.pop_front()) {
      bytes_ -= blocks_.front()->bytes;
      dropped.push_back(std::move(blocks_.front()));
    }
  }

 private:
  const ProcessMark mark_;
  std::mutex mutex_;
  std::deque<std::unique_ptr<Block>> blocks_;  // oldest first, under the mutex
  size_t bytes_ = 0;                           // of all blocks
};

void release(void* released) {
  std::unique_ptr<Block> block(static_cast<Block*>(released));
  block->owner->add(std::move(block));
}

}  // namespace

SharedAllocator& SharedAllocator::instance() {
  static auto* const made = new SharedAllocator;
  return *made;
}

c10::DataPtr SharedAllocator::allocate(size_t bytes) {
  if (bytes == 0) return {nullptr, c10::Device(c10::kCPU)};
  Block* block = of_process<FreeBlocks>().take(bytes).release();
  return {block->memory.get(), block, &release, c10::Device(c10::kCPU)};
}

void SharedAllocator::copy_data(void* target, const void* source, size_t bytes) const {
  default_copy_data(target, source, bytes);
}

}  // namespace hetcomm
