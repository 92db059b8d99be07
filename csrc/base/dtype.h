#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace hetcomm {

// X(name, C++ storage type, bytes, class). The class says which reduce operations are legal:
// floating (arithmetic), integral (arithmetic and bitwise), boolean (logic), moved (no reduction).
// A dtype is one line here plus, where it reduces, its arithmetic in device/kernels.
#define HETCOMM_DTYPES(X)                   \
  X(float32, float, 4, floating)            \
  X(float64, double, 8, floating)           \
  X(float16, Half, 2, floating)             \
  X(bfloat16, Bfloat16, 2, floating)        \
  X(float8_e4m3fn, Float8E4m3, 1, floating) \
  X(float8_e5m2, Float8E5m2, 1, floating)   \
  X(int8, int8_t, 1, integral)              \
  X(uint8, uint8_t, 1, integral)            \
  X(int16, int16_t, 2, integral)            \
  X(uint16, uint16_t, 2, integral)          \
  X(int32, int32_t, 4, integral)            \
  X(uint32, uint32_t, 4, integral)          \
  X(int64, int64_t, 8, integral)            \
  X(uint64, uint64_t, 8, integral)          \
  X(boolean, Boolean, 1, boolean)           \
  X(bytes1, void, 1, moved)                 \
  X(bytes2, void, 2, moved)                 \
  X(bytes4, void, 4, moved)                 \
  X(bytes8, void, 8, moved)                 \
  X(bytes16, void, 16, moved)

enum class Dtype : uint8_t {
#define X(name, storage, bytes, kind) name,
  HETCOMM_DTYPES(X)
#undef X
};

#define X(...) +1
inline constexpr uint32_t kDtypes = 0 HETCOMM_DTYPES(X);
#undef X

enum class DtypeClass : uint8_t { floating, integral, boolean, moved };

// X(name): element-wise, associative and commutative up to rounding; what kernels combine by.
#define HETCOMM_COMBINING_OPS(X) X(sum) X(product) X(min) X(max) X(band) X(bor) X(bxor)
// average is a sum divided by the number of ranks; premul_sum the sum of all contributions, each
// times a factor. Only plans and native libraries know them: elsewhere they are sums with a Scale.
#define HETCOMM_REDUCE_OPS(X) HETCOMM_COMBINING_OPS(X) X(average) X(premul_sum)

enum class ReduceOp : uint8_t {
#define X(name) name,
  HETCOMM_REDUCE_OPS(X)
#undef X
};

#define X(...) +1
inline constexpr uint32_t kReduceOps = 0 HETCOMM_REDUCE_OPS(X);
#undef X

inline bool scales(ReduceOp op) { return op == ReduceOp::average || op == ReduceOp::premul_sum; }
// How contributions are combined, but for the scale.
inline ReduceOp combining(ReduceOp op) { return scales(op) ? ReduceOp::sum : op; }

// What a sum is multiplied by, or divided by. A factor is rounded to the dtype first, as native
// libraries have it; a divisor is not.
struct Scale {
  double by = 1;
  bool divides = false;

  bool operator==(const Scale&) const = default;
};

size_t size_of(Dtype dtype);
DtypeClass class_of(Dtype dtype);
const char* name(Dtype dtype);
const char* name(ReduceOp op);
Dtype dtype_from_name(const std::string& name);         // throws Error(invalid_argument)
ReduceOp reduce_op_from_name(const std::string& name);  // throws Error(invalid_argument)

// Bitwise operations need integers or booleans, a scale needs floating point (as with torch's gloo,
// which has no average of integers); nothing reduces a moved dtype.
bool reducible(Dtype dtype, ReduceOp op);
// Whether libraries with NCCL's ABI reduce it: they have neither 16-bit integers nor bitwise
// operations, but logic on booleans except exclusive or. 8-bit floats need RankInfo::float8, too.
bool ccl_reduces(Dtype dtype, ReduceOp op);
inline bool is_float8(Dtype dtype) {
  return dtype == Dtype::float8_e4m3fn || dtype == Dtype::float8_e5m2;
}

}  // namespace hetcomm
