#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace hetcomm {

// A dtype is one line here: X(name, bytes, class, ccl, torch, numpy, dlpack, kernels' type).
//   class    the legal reduce operations: floating (arithmetic), integral (arithmetic and bitwise),
//            boolean (logic), moved (none)
//   ccl      its number in NCCL's ABI; -1: the libraries only move it
//   torch    of c10::ScalarType; empty: elements of this size without a line of their own
//   numpy    kind and bytes, or the name of a type of ml_dtypes
//   dlpack   the code of its kind; -1: none
//   kernels  the type in device/kernels/numbers.cuh that reads, rounds and combines the dtype
// clang-format off
#define HETCOMM_FLOATING_DTYPES(X) \
  X(float32, 4, floating, 7, Float, "f4", 2, Float32) \
  X(float64, 8, floating, 8, Double, "f8", 2, Float64) \
  X(float16, 2, floating, 6, Half, "f2", 2, Float16) \
  X(bfloat16, 2, floating, 9, BFloat16, "bfloat16", 4, Bfloat16) \
  X(float8_e4m3fn, 1, floating, 10, Float8_e4m3fn, "float8_e4m3fn", 10, Byte<4, 3, false>) \
  X(float8_e5m2, 1, floating, 11, Float8_e5m2, "float8_e5m2", 12, Byte<5, 2, true>)
#define HETCOMM_DTYPES(X) \
  HETCOMM_FLOATING_DTYPES(X) \
  X(int8, 1, integral, 0, Char, "i1", 0, Integer<signed char, unsigned>) \
  X(uint8, 1, integral, 1, Byte, "u1", 1, Integer<unsigned char, unsigned>) \
  X(int16, 2, integral, -1, Short, "i2", 0, Integer<short, unsigned>) \
  X(uint16, 2, integral, -1, UInt16, "u2", 1, Integer<unsigned short, unsigned>) \
  X(int32, 4, integral, 2, Int, "i4", 0, Integer<int, unsigned>) \
  X(uint32, 4, integral, 3, UInt32, "u4", 1, Integer<unsigned, unsigned>) \
  X(int64, 8, integral, 4, Long, "i8", 0, Integer<long long, unsigned long long>) \
  X(uint64, 8, integral, 5, UInt64, "u8", 1, Integer<unsigned long long, unsigned long long>) \
  X(boolean, 1, boolean, 1, Bool, "b1", 6, Boolean) \
  X(bytes1, 1, moved, -1, , "V1", -1, Moved) \
  X(bytes2, 2, moved, -1, , "V2", -1, Moved) \
  X(bytes4, 4, moved, -1, , "V4", -1, Moved) \
  X(bytes8, 8, moved, -1, , "V8", -1, Moved) \
  X(bytes16, 16, moved, -1, , "V16", -1, Moved)
// clang-format on

enum class Dtype : uint8_t {
#define X(name, ...) name,
  HETCOMM_DTYPES(X)
#undef X
};

enum class DtypeClass : uint8_t { floating, integral, boolean, moved };

struct DtypeRow {
  Dtype dtype;
  const char* name;
  size_t bytes;
  DtypeClass kind;
  int ccl;
  const char* torch;
  const char* numpy;
  int dlpack;
};

inline constexpr DtypeRow kDtypeRows[] = {
#define X(name, bytes, kind, ccl, torch, numpy, dlpack, ...) \
  {Dtype::name, #name, bytes, DtypeClass::kind, ccl, #torch, numpy, dlpack},
    HETCOMM_DTYPES(X)
#undef X
};

#define X(...) +1
inline constexpr uint32_t kDtypes = 0 HETCOMM_DTYPES(X);
inline constexpr uint32_t kFloatingDtypes = 0 HETCOMM_FLOATING_DTYPES(X);  // the first ones
#undef X

// X(name): the operations of kernels; element-wise, associative and commutative up to rounding.
#define HETCOMM_COMBINING_OPS(X) X(sum) X(product) X(min) X(max) X(band) X(bor) X(bxor)
// average is the sum divided by the number of ranks. premul_sum is the sum of all contributions,
// each times a factor. Only plans and native libraries know these two; elsewhere they are sums with
// a Scale.
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

// The factor or divisor of a sum. A factor is rounded to the dtype first, as in native libraries; a
// divisor is not.
struct Scale {
  double by = 1;
  bool divides = false;

  bool operator==(const Scale&) const = default;
};

constexpr const DtypeRow& row_of(Dtype dtype) { return kDtypeRows[static_cast<size_t>(dtype)]; }
constexpr size_t size_of(Dtype dtype) { return row_of(dtype).bytes; }
constexpr DtypeClass class_of(Dtype dtype) { return row_of(dtype).kind; }
constexpr const char* name(Dtype dtype) { return row_of(dtype).name; }
const char* name(ReduceOp op);

// Bitwise operations need integers or booleans. A scale needs floating point, as in torch's gloo,
// which has no average of integers. No operation reduces a moved dtype.
bool reducible(Dtype dtype, ReduceOp op);
// Whether libraries with NCCL's ABI reduce the dtype. They do so for dtypes with a number there, by
// operations that are not bitwise; for booleans also by logic except exclusive or. 8-bit floats
// need RankInfo::float8, too.
bool ccl_reduces(Dtype dtype, ReduceOp op);
inline bool is_float8(Dtype dtype) {
  return class_of(dtype) == DtypeClass::floating && size_of(dtype) == 1;
}

}  // namespace hetcomm
