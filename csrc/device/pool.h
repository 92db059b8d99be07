#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace hetcomm {

// Blocks of one kind of memory, kept for reuse because allocation is slow. Sizes are rounded up to
// powers of two, and above 1 MiB to quarters between them. Only trim() frees: a runtime may wait
// for all work of the device before it frees. Blocks are left to the end of the process, because
// the runtime may end before. Owned by a device. Thread-safe.
class Pool {
 public:
  // `make` throws Error(vendor) if there is no memory; `free` must not throw.
  using Make = std::function<void*(size_t bytes)>;
  using Free = std::function<void(void*)>;
  Pool(Make make, Free free, int64_t most_kept);

  void* take(size_t bytes);  // 256 bytes at least, so never null
  void give(void* block);    // null is allowed
  void trim();               // frees the largest idle blocks until `most_kept` bytes are left

  static size_t rounded(size_t bytes);

 private:
  // Takes an idle block of lowest to highest bytes; null if there is none.
  void* take_idle(size_t lowest, size_t highest);

  const Make make_;
  const Free free_;
  const int64_t most_kept_;
  mutable std::mutex mutex_;
  std::map<size_t, std::vector<void*>> idle_;  // by rounded size
  std::unordered_map<void*, size_t> out_;
  int64_t kept_ = 0;
};

}  // namespace hetcomm
