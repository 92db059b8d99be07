#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace hetcomm {

// The reduction kernels of one instruction set, by dtype and operation; null where the pair is not
// reducible(). Immutable, with static storage. The arguments are those of reduce() and
// scaled_sum().
struct ReductionKernels {
#define X(...) +1
  static constexpr int kOps = HETCOMM_COMBINING_OPS(X);
#undef X
  // `multiplied` and `divided` scale by `by`; the other kernels ignore it.
  using Kernel = void (*)(void* target, const void* const* sources, int source_count, size_t count,
                          double by);
  struct Row {
    Kernel ops[kOps];
    Kernel multiplied, divided;  // scaled sums; for floating dtypes only, else null
  };
  Row dtypes[kDtypes];
};

// All three are device/reduction_kernels.inc, compiled with the flags in kernels.cmake. Call one
// only on a processor that has its instructions.
extern const ReductionKernels reduction_kernels_baseline;
#ifdef __x86_64__
extern const ReductionKernels reduction_kernels_avx2;    // AVX2, F16C
extern const ReductionKernels reduction_kernels_avx512;  // AVX-512 F, BW, VL, DQ
#endif

}  // namespace hetcomm
