#pragma once

#include <cstddef>
#include <cstdint>

namespace hetcomm {

inline constexpr size_t kLosslessBlock = 4096;  // elements
inline constexpr size_t kLosslessGroup = 64;  // elements whose codes share the words of bit planes

// The streams of one block, each of whole groups. The split of an element into `symbols`, `near`
// and `far` is in lossless.h.
struct LosslessStreams {
  alignas(64) uint8_t symbols[kLosslessBlock];
  alignas(64) uint8_t near[kLosslessBlock];
  alignas(64) uint16_t far[kLosslessBlock];
};

// The loops of one instruction set. Immutable, with static storage.
struct LosslessKernels {
  // Fills the streams with `count` elements. Returns which streams have a bit that is not zero:
  // 1 for near, 2 for far.
  using Split = int (*)(LosslessStreams& streams, const void* source, size_t count);
  using Join = void (*)(void* target, const LosslessStreams& streams, size_t count);
  struct Format {
    Split split;
    Join join;
  };
  Format formats[3];  // by LosslessFormat

  // Codes `count` symbols by their index in `table`, which has 2^width - 1 entries; other symbols
  // are escapes. Writes `width` words for each group, then the escapes. Returns the number of
  // escapes, or -1 if there are more than `most`; then the escapes are not whole.
  int (*encode)(uint8_t* words, const uint8_t* symbols, size_t count, const uint8_t* table,
                int width, int most);
  // The reverse, for `escapes` escapes. False if the words call for another number of escapes.
  bool (*decode)(uint8_t* symbols, const uint8_t* words, size_t count, const uint8_t* table,
                 int width, int escapes);
  // Bits 0 to 2 of each element of `far` as three words for each group, and back.
  void (*pack_far)(uint8_t* words, const uint16_t* far, size_t count);
  void (*unpack_far)(uint16_t* far, const uint8_t* words, size_t count);
};

// All are lossless_kernels.inc, compiled with the flags in device/kernels.cmake.
extern const LosslessKernels lossless_kernels_baseline;
#ifdef __x86_64__
extern const LosslessKernels lossless_kernels_avx2;
extern const LosslessKernels lossless_kernels_avx512;
#endif

}  // namespace hetcomm
