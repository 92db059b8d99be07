#pragma once

#include <chrono>

namespace hetcomm {

using Clock = std::chrono::steady_clock;

// A point in time after which a wait gives up. Every wait in hetcomm takes one.
class Deadline {
 public:
  explicit Deadline(std::chrono::nanoseconds timeout)
      : timeout_(timeout), at_(Clock::now() + timeout) {}

  bool passed() const { return Clock::now() >= at_; }
  std::chrono::nanoseconds left() const {
    auto left = at_ - Clock::now();
    return left.count() > 0 ? left : std::chrono::nanoseconds(0);
  }
  std::chrono::milliseconds left_ms() const {
    return std::chrono::ceil<std::chrono::milliseconds>(left());
  }
  std::chrono::nanoseconds timeout() const { return timeout_; }

 private:
  std::chrono::nanoseconds timeout_;
  Clock::time_point at_;
};

}  // namespace hetcomm
