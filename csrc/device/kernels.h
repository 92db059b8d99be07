#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace hetcomm {

// The reduction kernels of one instruction set, indexed by dtype and operation; null where the pair
// is not reducible(). Immutable, with static storage; the arguments are those of reduce().
struct Kernels {
#define X(...) +1
  static constexpr int kDtypes = HETCOMM_DTYPES(X);
  static constexpr int kOps = HETCOMM_REDUCE_OPS(X);
#undef X
  using Kernel = void (*)(void* target, const void* const* sources, int source_count, size_t count);
  struct Row {
    Kernel ops[kOps];
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
