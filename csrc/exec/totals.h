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

// Whether no rank is done before the last rank has called.
inline bool synchronizes(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::all_gather ||
         collective == Collective::reduce_scatter || collective == Collective::all_to_all ||
         collective == Collective::barrier;
}

// What the operations of one kind amount to.
struct Totals {
  uint64_t operations = 0, errors = 0;
  uint64_t bytes = 0;  // of Spec::count
  uint64_t ticks = 0;  // from submission to end
};

// How long one call of a collective took here. Ranks compare the same calls: the rank that arrived
// last took the least time.
struct Arrival {
  uint64_t sequence = 0;
  int64_t time = 0;  // ticks, ns for readers
};

// A sample of calls that ranks with equal histories have in common, although they look at slightly
// different moments: of the calls whose number is an odd multiple of 2^n, the last few for each n.
class Arrivals {
 public:
  void add(uint64_t sequence, int64_t time) {
    const size_t level =
        std::min<size_t>(static_cast<size_t>(std::countr_zero(sequence + 1)), kLevels - 1);
    levels_[level][((sequence + 1) >> (level + 1)) % kEach] = {sequence + 1, time};
  }
  // Those in memory. Sequence numbers as of the calls.
  std::vector<Arrival> read() const {
    std::vector<Arrival> found;
    for (const auto& level : levels_) {
      for (const Arrival& one : level) {
        if (one.sequence > 0) found.push_back({one.sequence - 1, one.time});
      }
    }
    return found;
  }

 private:
  static constexpr size_t kLevels = 24, kEach = 8;
  std::array<std::array<Arrival, kEach>, kLevels> levels_{};  // sequence + 1; 0: none yet
};

// The fastest call of one collective and size class since the last look: that of a rank that waited
// for none.
struct Fastest {
  Collective collective = Collective::all_reduce;
  Dtype dtype = Dtype::float32;
  int64_t count = 0;   // of the fastest call
  int64_t time = 0;    // ticks, ns for readers
  uint64_t calls = 0;  // 0: none
};

// By collective and power of two in bytes; only long calls.
class FastestCalls {
 public:
  static constexpr int kSmallest = 18;  // log2 of the bytes
  void add(Collective collective, Dtype dtype, int64_t count, uint64_t bytes, int64_t time) {
    const int size_class = std::bit_width(bytes) - 1;
    if (size_class < kSmallest) return;
    Fastest& one = calls_[static_cast<size_t>(collective)][std::min<size_t>(
        static_cast<size_t>(size_class - kSmallest), kClasses - 1)];
    if (one.calls++ > 0 && time >= one.time) return;
    one = {collective, dtype, count, time, one.calls};
  }
  // Forgets them.
  std::vector<Fastest> take() {
    std::vector<Fastest> found;
    for (auto& classes : calls_) {
      for (Fastest& one : classes) {
        if (one.calls > 0) found.push_back(one);
        one = {};
      }
    }
    return found;
  }

 private:
  static constexpr size_t kClasses = 16;
  std::array<std::array<Fastest, kClasses>, kCollectives> calls_{};
};

}  // namespace hetcomm
