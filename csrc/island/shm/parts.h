#pragma once

#include <algorithm>
#include <cstdint>

namespace hetcomm::shm {

constexpr int64_t kLine = 64;  // bytes of a cache line

// Least bytes of a chunk that one member reduces, in calls that are large enough.
constexpr int64_t kSmallestPart = 16 << 10;

constexpr int64_t round_up(int64_t bytes, int64_t to = kLine) { return (bytes + to - 1) / to * to; }

struct Bounds {
  int64_t begin;
  int64_t end;
};

// One owner's part of a range that owners share equally, in whole cache lines and so in whole
// elements.
inline Bounds part(Bounds whole, int owner, int owners) {
  const int64_t width = round_up((whole.end - whole.begin + owners - 1) / owners);
  return {std::min(whole.end, whole.begin + owner * width),
          std::min(whole.end, whole.begin + (owner + 1) * width)};
}

}  // namespace hetcomm::shm
