#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/descriptor.h"
#include "base/fork.h"

namespace hetcomm::shm {

// This process's shared allocations: ranges of one file in memory, as large as the machine's memory
// (up to 1 TiB, and to what the limits of the process permit), without pages at first. The file has
// no name, so nothing is left behind. Other processes of the user open it through /proc.
// Thread-safe. Kept until the process ends.
class Arena {
 public:
  Arena();
  // The arena of this process. A forked child gets an arena of its own. The parent's arena stays
  // mapped, because arrays from before the fork are in it.
  static Arena& mine() { return of_process<Arena>(); }

  // Memory for `bytes`, aligned to a page, in huge pages where the system has them for shared
  // memory. All pages are reserved at once, near the calling thread, and freed with the last
  // reference. Throws Error(vendor).
  std::shared_ptr<void> allocate(size_t bytes);

  bool holds(const std::byte* begin, int64_t bytes) const {
    const std::byte* base = base_.load(std::memory_order_acquire);
    return base != nullptr && begin >= base && begin + bytes <= base + bytes_;
  }
  uint64_t offset(const std::byte* address) const {
    return static_cast<uint64_t>(address - base_.load(std::memory_order_acquire));
  }

  // Tells that peers cannot open the arena: a warning, once there are allocations.
  void tell_unshared(const std::string& why);

  int descriptor() const { return descriptor_; }  // -1: the system has refused the file
  uint64_t device() const { return device_; }
  uint64_t inode() const { return inode_; }
  uint64_t bytes() const { return bytes_; }

 private:
  void map(size_t wanted);
  uint64_t reserve(uint64_t bytes, uint64_t alignment);
  void release(uint64_t offset, uint64_t bytes);
  void warn();  // under the mutex

  const ProcessMark mark_;
  Descriptor descriptor_;
  uint64_t device_ = 0;
  uint64_t inode_ = 0;
  uint64_t bytes_ = 0;
  std::string limit_;  // " within ulimit -v", if that bounds the arena
  std::string problem_;
  std::atomic<std::byte*> base_{nullptr};
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> free_;  // bytes by offset; this and the rest under the mutex
  std::string unshared_;
  bool warned_ = false;
};

}  // namespace hetcomm::shm
