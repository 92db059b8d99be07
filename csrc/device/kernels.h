#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace hetcomm {

// The reduction kernels of one instruction set, indexed by dtype and operation; null where the pair
// is not reducible(). Immutable, with static storage; the arguments are those of reduce() and
// scaled_sum().
struct Kernels {
#define X(...) +1
  static constexpr int kOps = HETCOMM_COMBINING_OPS(X);
#undef X
  // `by` is what sums are multiplied or divided by, which the others ignore.
  using Kernel = void (*)(void* target, const void* const* sources, int source_count, size_t count,
                          double by);
  struct Row {
    Kernel ops[kOps];
    Kernel multiplied, divided;  // sums; null but for floating dtypes
  };
  Row dtypes[kDtypes];
};

// All three are device/kernels.inc, compiled with the flags in kernels.cmake. Call one only on a
// processor that has its instructions.
extern const Kernels kernels_baseline;
#ifdef __x86_64__
extern const Kernels kernels_avx2;    // AVX2, F16C
extern const Kernels kernels_avx512;  // AVX-512 F, BW, VL, DQ
#endif

}  // namespace hetcomm
