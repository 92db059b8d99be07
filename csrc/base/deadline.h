#pragma once

#include <chrono>
#include <cmath>

namespace hetcomm {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;  // as callers in Python count

// The longest wait, some 31 years: the clock has room for as much again.
inline constexpr std::chrono::seconds kLongestTimeout(1'000'000'000);

// What a caller asked for, at most the longest. So is what lies beyond it on the other side, or is
// no number: torch converts a timedelta of more than 292,000 years into a negative one.
inline std::chrono::nanoseconds timeout_of(Seconds asked) {
  if (!(std::abs(asked.count()) <= kLongestTimeout.count())) return kLongestTimeout;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(asked);
}

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
