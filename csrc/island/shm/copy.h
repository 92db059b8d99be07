#pragma once

#ifdef __x86_64__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hetcomm::shm {

// Calls that read and write more bytes than this in all go past the caches: ranks of a host seldom
// share a larger cache. Measured between 2 cores with 480 MiB of L3: going past the caches is
// faster for results of 16 MiB, and slower for 4 MiB. Processors of Arm find long runs of stores
// themselves and do not read their lines, so no call does this there.
#ifdef __x86_64__
constexpr int64_t kCache = 32 << 20;
#else
constexpr int64_t kCache = INT64_MAX;
#endif

// Copies with non-temporal stores: the target's lines are not read first, and other lines stay in
// the caches. For targets that are not read soon. Ordered before later stores.
inline void copy_past_caches(std::byte* target, const std::byte* source, size_t bytes) {
#ifdef __x86_64__
  constexpr size_t line = 64;
  const size_t head = std::min(bytes, -reinterpret_cast<uintptr_t>(target) % line);
  std::memcpy(target, source, head);
  size_t at = head;
  for (; at + line <= bytes; at += line) {
    __m128i values[4];
    std::memcpy(values, source + at, line);
    for (int i = 0; i < 4; ++i) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(target + at) + i, values[i]);
    }
  }
  std::memcpy(target + at, source + at, bytes - at);
  _mm_sfence();
#else
  std::memcpy(target, source, bytes);
#endif
}

}  // namespace hetcomm::shm
