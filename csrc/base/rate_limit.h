#pragma once

#include <map>
#include <mutex>

#include "base/deadline.h"

namespace hetcomm {

// Lets a key through once in a period, such as a warning about one rank. Thread-safe.
template <class Key>
class RateLimit {
 public:
  explicit RateLimit(Clock::duration period) : period_(period) {}

  bool allows(const Key& key) {
    std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    const auto [last, first] = last_.try_emplace(key, now);
    if (!first && now - last->second < period_) return false;
    last->second = now;
    return true;
  }

 private:
  std::mutex mutex_;
  const Clock::duration period_;
  std::map<Key, Clock::time_point> last_;
};

}  // namespace hetcomm
