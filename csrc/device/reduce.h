#pragma once

#include <array>
#include <cstddef>

#include "base/dtype.h"

namespace hetcomm {

// target[i] = sources[0][i] op sources[1][i] op ... in that order, for `count` elements in host
// memory at any alignment.
//
// 16-bit and 8-bit floats accumulate in float32 and are rounded once, to nearest even; too large
// values become infinity, or 448 in float8_e4m3fn. Integer sums and products wrap. A NaN in any
// source gives NaN, always the same quiet NaN, also for min and max (like torch.minimum; gloo's
// std::min depends on the order of its arguments). Of equal values (0.0 and -0.0) min and max keep
// the first. A boolean is any byte, zero or not, and the result is 0 or 1: sum, max and bor are
// `or`, product, min and band are `and`, bxor is `exclusive or`.
//
// `target` may be the same pointer as one source; partial overlap is not allowed. The instruction
// set (base/instruction_set.h) is chosen once at run time. Precondition: reducible(dtype, op), no
// scale, and source_count >= 1. Thread-safe. The first call throws Error(invalid_argument) if
// HETCOMM_ISA is not usable.
void reduce(Dtype dtype, ReduceOp op, void* target, const void* const* sources, int source_count,
            size_t count);

// target[i] = (sources[0][i] + sources[1][i] + ...) * by, or / by. The sum is scaled before it is
// rounded. `scale` is a result of rounded(). Otherwise like reduce(). Floating dtypes only.
void scaled_sum(Dtype dtype, Scale scale, void* target, const void* const* sources,
                int source_count, size_t count);
// A number as a floating dtype stores it.
std::array<std::byte, 8> stored(Dtype dtype, double value);
// A factor rounded to the dtype; a divisor stays.
Scale rounded(Dtype dtype, Scale scale);

}  // namespace hetcomm
