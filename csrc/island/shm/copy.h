#pragma once

#include <emmintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hetcomm::shm {

// Calls that read and write more than this in all work from memory: ranks of a host seldom share a
// larger cache. Measured, not asked for: between 2 cores with 480 MiB of L3 results of
// 16 MiB are there sooner past the caches, those of 4 MiB are not.
constexpr int64_t kCache = 32 << 20;

// Copies without reading the target's lines first and without displacing others from the caches:
// for what nobody reads soon. Ordered before later stores.
inline void copy_past_caches(std::byte* target, const std::byte* source, size_t bytes) {
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
}

}  // namespace hetcomm::shm
