#pragma once

#include <chrono>
#include <cstddef>
#include <mutex>

namespace hetcomm::emulated {

// One direction of the path between pinned and device memory: copies share its rate. Thread-safe.
class CopyEngine {
 public:
  // Copies and takes as long as settings() say. Returns when done.
  void copy(void* target, const void* source, size_t bytes);

 private:
  using Clock = std::chrono::steady_clock;
  void transmit(size_t bytes, int64_t rate);

  std::mutex mutex_;
  Clock::time_point free_at_{};  // when all bytes taken so far have passed
};

}  // namespace hetcomm::emulated
