#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace hetcomm {

// target[i] = source[i] in another floating dtype, for `count` elements in host memory at any
// alignment. Each element is rounded once, to nearest even. Too large values become infinity, or
// 448 in float8_e4m3fn, which has no infinity. A NaN becomes the dtype's one quiet NaN without
// sign, even if both dtypes are the same. `target` may be `source` if both dtypes have one size;
// other overlap is not allowed. All instruction sets give the same bits. Thread-safe. e4m3fn and
// e5m2 are those of the Open Compute Project's 8-bit floating point specification.
void cast(Dtype to, void* target, Dtype from, const void* source, size_t count);

}  // namespace hetcomm
