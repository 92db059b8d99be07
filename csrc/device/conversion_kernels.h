#pragma once

#include <cstddef>

#include "device/cast.h"

namespace hetcomm {

// The casts and quantisers of one instruction set. Immutable, with static storage.
struct ConversionKernels {
  using Cast = void (*)(void* target, const void* source, size_t count);
  using Quantise = void (*)(void* scales, void* codes, const void* source, size_t count,
                            size_t group);
  // The codes of a source begin `codes` bytes after its scales.
  using Dequantise = void (*)(void* target, const void* first, const void* const* encoded,
                              int source_count, size_t codes, size_t count, size_t group);
  struct Casts {
    Cast to[kFloatingDtypes];
  };
  // For float32, float16 and bfloat16.
  struct Quantisers {
    Quantise quantise8[3], quantise4[3];
    Dequantise dequantise8[3], dequantise4[3];
  };
  Casts from[kFloatingDtypes];
  Quantisers with_float32, with_bfloat16;  // scales
};

// All three are device/conversion_kernels.inc, compiled with the flags in kernels.cmake.
extern const ConversionKernels conversion_kernels_baseline;
#ifdef __x86_64__
extern const ConversionKernels conversion_kernels_avx2;
extern const ConversionKernels conversion_kernels_avx512;
#endif

// The table of the instruction set that reduce() uses.
const ConversionKernels& conversion_kernels();

}  // namespace hetcomm
