#pragma once

#include <cstddef>
#include <cstdint>

namespace hetcomm {

// The loops of the lossy codecs for one instruction set. Immutable, with static storage. `first`
// may be null or the target. Every NaN of a result is the one quiet NaN without sign.
struct BlockKernels {
  // target[i] = first[i] + second[i]
  void (*add)(float* target, const float* first, const float* second, size_t count);
  // lost[i] = wanted[i] - decoded[i], or 0 if the difference is not finite.
  void (*lose)(float* lost, const float* wanted, const float* decoded, size_t count);

  // 16-bit floats. Decodes to (first[i] +) the number.
  struct Cast {
    void (*encode)(void* codes, const float* values, size_t count);
    void (*decode)(float* target, const float* first, const void* codes, size_t count);
  };
  Cast bfloat16, float16;

  // 8-bit floats with a scale for each group. Decodes to (first[i] +) the number * scale.
  struct Grouped {
    void (*encode)(void* scales, void* codes, const float* values, size_t count, size_t group);
    void (*decode)(float* target, const float* first, const void* scales, const void* codes,
                   size_t count, size_t group);
  };
  struct Scaled {
    Grouped with_float32, with_bfloat16;  // scales
  };
  Scaled float8_e4m3fn, float8_e5m2;

  // Sets bit i % 64 of chosen[i / 64] for the `wanted` values of largest magnitude, of equal ones
  // the earlier. A NaN has the largest. `count` is 2048 at most, `wanted` is 1 to `count`.
  void (*select)(uint64_t* chosen, const float* values, size_t count, size_t wanted);
};

// All are block_kernels.inc, compiled with the flags in device/kernels.cmake.
extern const BlockKernels block_kernels_baseline;
#ifdef __x86_64__
extern const BlockKernels block_kernels_avx2;
extern const BlockKernels block_kernels_avx512;
#endif

// The table of the instruction set that reduce() uses.
const BlockKernels& block_kernels();

}  // namespace hetcomm
