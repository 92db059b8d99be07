#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace hetcomm {

// e4m3fn and e5m2 are those of the Open Compute Project's 8-bit floating point specification.
// target[i] = source[i] in another floating dtype, for `count` elements in host memory at any
// alignment. Each is rounded once, to nearest even; what is too large becomes infinity, or 448 in
// float8_e4m3fn, which has none. A NaN becomes the dtype's one quiet NaN without sign, also where
// both dtypes are the same. `target` may be `source` if both dtypes have one size; other overlap is
// not allowed. All instruction sets give the same bits. Thread-safe.
void cast(Dtype to, void* target, Dtype from, const void* source, size_t count);

}  // namespace hetcomm
