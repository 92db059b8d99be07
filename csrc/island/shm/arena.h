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

// This process's shared allocations: parts of one file in memory, as large as the machine's memory
// (up to 1 TiB) and empty until it is allocated from. It has no name, so nothing is left behind;
// other processes of the user open it through /proc. Thread-safe. Lives until the process ends.
class Arena {
 public:
  Arena();
  // Of this process. A child of fork() gets its own, and leaves its parent's as it is: arrays made
  // before the fork still lie there.
  static Arena& mine() { return of_process<Arena>(); }

  // Memory for `bytes`, at a page, and in huge pages where the system gives them to shared memory;
  // it is there at once, near the calling thread. Given back to the system with the last reference.
  // Throws Error(vendor).
  std::shared_ptr<void> allocate(size_t bytes);

  bool holds(const std::byte* begin, int64_t bytes) const {
    const std::byte* base = base_.load(std::memory_order_acquire);
    return base != nullptr && begin >= base && begin + bytes <= base + bytes_;
  }
  uint64_t offset(const std::byte* address) const {
    return static_cast<uint64_t>(address - base_.load(std::memory_order_acquire));
  }

  // That peers cannot open it, so that allocations are like other memory: a warning once there are
  // some.
  void tell_unshared(const std::string& why);

  int descriptor() const { return descriptor_; }  // -1: the system gives none
  uint64_t device() const { return device_; }
  uint64_t inode() const { return inode_; }
  uint64_t bytes() const { return bytes_; }

 private:
  void map();
  uint64_t reserve(uint64_t bytes, uint64_t alignment);
  void release(uint64_t offset, uint64_t bytes);
  void warn();  // under the mutex

  const ProcessMark mark_;
  Descriptor descriptor_;
  uint64_t device_ = 0;
  uint64_t inode_ = 0;
  uint64_t bytes_ = 0;
  std::string problem_;
  std::atomic<std::byte*> base_{nullptr};
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> free_;  // bytes by offset, under the mutex like what follows
  std::string unshared_;
  bool warned_ = false;
};

}  // namespace hetcomm::shm
