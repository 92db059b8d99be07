#pragma once

#include <chrono>
#include <cmath>

namespace hetcomm {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;  // times in Python

// The longest wait, some 31 years. The clock has room for as much again.
inline constexpr std::chrono::seconds kLongestTimeout(1'000'000'000);

// A caller's timeout, at most the longest. Very negative values and NaN also become the longest:
// torch converts a timedelta of more than 292,000 years into a negative value.
inline std::chrono::nanoseconds timeout_of(Seconds asked) {
  if (!(std::abs(asked.count()) <= kLongestTimeout.count())) return kLongestTimeout;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(asked);
}

// The point in time at which a wait gives up. Every wait in hetcomm takes a deadline.
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
