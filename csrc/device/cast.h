#pragma once

#include <cstddef>
#include <cstdint>

namespace hetcomm {

// X(name, bytes): floating-point storage formats, named as the types in device/kernels/numbers.cuh.
// e4m3 and e5m2 are those of the Open Compute Project's 8-bit floating point specification (torch:
// float8_e4m3fn, float8_e5m2).
#define HETCOMM_FLOAT_FORMATS(X) \
  X(float32, 4)                  \
  X(float64, 8)                  \
  X(float16, 2)                  \
  X(bfloat16, 2)                 \
  X(e4m3, 1)                     \
  X(e5m2, 1)

enum class FloatFormat : uint8_t {
#define X(name, bytes) name,
  HETCOMM_FLOAT_FORMATS(X)
#undef X
};

#define X(...) +1
inline constexpr int kFloatFormats = 0 HETCOMM_FLOAT_FORMATS(X);
#undef X

size_t size_of(FloatFormat format);
const char* name(FloatFormat format);

// target[i] = source[i] in another format, for `count` elements in host memory at any alignment.
// Each is rounded once, to nearest even; what is too large becomes infinity, or 448 in e4m3, which
// has none. A NaN becomes the format's one quiet NaN without sign, also where both formats
// are the same. `target` may be `source` if both formats have one size; other overlap is not
// allowed. All instruction sets give the same bits. Thread-safe.
void cast(FloatFormat to, void* target, FloatFormat from, const void* source, size_t count);

}  // namespace hetcomm
