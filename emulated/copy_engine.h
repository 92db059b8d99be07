#pragma once

#include <chrono>
#include <cstddef>
#include <mutex>

namespace hetcomm::emulated {

// One direction of copies between pinned and device memory. Copies share its rate. Thread-safe.
class CopyEngine {
 public:
  // Copies at the rate and latency of settings(). Returns when done.
  void copy(void* target, const void* source, size_t bytes);

 private:
  using Clock = std::chrono::steady_clock;
  void transmit(size_t bytes, int64_t rate);

  std::mutex mutex_;
  Clock::time_point free_at_{};  // when all bytes so far have passed
};

}  // namespace hetcomm::emulated
