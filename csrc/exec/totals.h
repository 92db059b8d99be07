#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "plan/plan.h"

namespace hetcomm {

inline constexpr size_t kCollectives = static_cast<size_t>(Collective::recv) + 1;

// Every rank ends such a collective after the last rank has called.
inline bool synchronizes(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::all_gather ||
         collective == Collective::reduce_scatter || collective == Collective::all_to_all ||
         collective == Collective::barrier;
}

// What the operations of one kind amount to.
struct OperationTotals {
  uint64_t operations = 0, errors = 0;
  uint64_t bytes = 0;  // of Spec::count
  uint64_t ticks = 0;  // from submission to end
};

// Bytes of a call. The rate of a path decides how long such a call takes.
inline constexpr uint64_t kLongCall = 256 << 10;

// One call of a collective on this rank. Ranks compare the same calls: which rank began last, and
// how long the collective took from then on.
struct CallTime {
  uint64_t sequence = 0;
  int64_t begin = 0, time = 0;  // ticks; for readers ns of Clock, and ns
  int64_t count = 0;
  Collective collective = Collective::all_reduce;
  Dtype dtype = Dtype::float32;
};

// A sample of calls. The sequence number alone decides the level of a call, so all ranks keep the
// same calls. Level 0 gets half of all calls, level 1 a quarter, and so on. Each level keeps its
// last calls. Two ranks thus share the calls of high levels, although they read at different
// moments. Fibonacci hashing (Knuth, TAOCP 6.4) spreads the calls of a loop over the levels.
class CallSample {
 public:
  static constexpr size_t kEach = 32;  // calls of a level

  void add(const CallTime& one) {
    constexpr uint64_t golden = 0x9E3779B97F4A7C15;  // 2^64 / 1.618
    const auto zeros = static_cast<size_t>(std::countl_zero(one.sequence * golden));
    Level& level = levels_[std::min(zeros, kLevels - 1)];
    level.calls[level.added++ % kEach] = one;
  }
  // Calls from the number `since` on, the last ones of each level, at most `each`.
  std::vector<CallTime> read(uint64_t since, size_t each) const {
    std::vector<CallTime> found;
    for (const Level& level : levels_) {
      const uint64_t kept = std::min<uint64_t>({level.added, kEach, each});
      for (uint64_t i = level.added - kept; i < level.added; ++i) {
        const CallTime& one = level.calls[i % kEach];
        if (one.sequence >= since) found.push_back(one);
      }
    }
    return found;
  }

 private:
  static constexpr size_t kLevels = 24;
  struct Level {
    uint64_t added = 0;
    std::array<CallTime, kEach> calls;
  };
  std::array<Level, kLevels> levels_;
};

}  // namespace hetcomm
