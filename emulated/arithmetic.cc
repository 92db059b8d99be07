#include "emulated/arithmetic.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "device/reduce.h"
#include "emulated/ccl_abi.h"

namespace hetcomm::emulated {

namespace {

// Null for a number that no dtype has; booleans share theirs with the integers of their size.
const DtypeRow* row_of_type(int type) {
  for (const DtypeRow& row : kDtypeRows) {
    if (row.ccl == type && row.ccl >= 0 && row.kind != DtypeClass::boolean) return &row;
  }
  return nullptr;
}

Dtype dtype_of(int type) { return row_of_type(type)->dtype; }

ReduceOp op_of(int op) {
  switch (op) {
    case op_product:
      return ReduceOp::product;
    case op_max:
      return ReduceOp::max;
    case op_min:
      return ReduceOp::min;
    default:
      return ReduceOp::sum;
  }
}

template <typename T>
void divide_all(int by, void* target, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    char* place = static_cast<char*>(target) + i * sizeof(T);
    T value;
    std::memcpy(&value, place, sizeof(T));
    value = static_cast<T>(value / static_cast<T>(by));
    std::memcpy(place, &value, sizeof(T));
  }
}

}  // namespace

size_t size_of_type(int type) {
  const DtypeRow* row = row_of_type(type);
  return row == nullptr ? 0 : row->bytes;
}

bool floating_type(int type) { return class_of(dtype_of(type)) == DtypeClass::floating; }

void combine(int type, int op, void* target, const void* const* sources, int source_count,
             size_t count) {
  reduce(dtype_of(type), op_of(op), target, sources, source_count, count);
}

void scale(int type, const Scalar& by, void* target, const void* source, size_t count) {
  constexpr size_t kBlock = 1024;
  size_t bytes = size_of_type(type);
  std::vector<char> factors(kBlock * bytes);
  for (size_t i = 0; i < kBlock; ++i) std::memcpy(&factors[i * bytes], by.bytes, bytes);
  for (size_t done = 0; done < count; done += kBlock) {
    const void* sources[] = {static_cast<const char*>(source) + done * bytes, factors.data()};
    reduce(dtype_of(type), ReduceOp::product, static_cast<char*>(target) + done * bytes, sources, 2,
           std::min(kBlock, count - done));
  }
}

void divide(int type, int by, void* target, size_t count) {
  switch (type) {
    case type_int8:
      return divide_all<int8_t>(by, target, count);
    case type_uint8:
      return divide_all<uint8_t>(by, target, count);
    case type_int32:
      return divide_all<int32_t>(by, target, count);
    case type_uint32:
      return divide_all<uint32_t>(by, target, count);
    case type_int64:
      return divide_all<int64_t>(by, target, count);
    default:
      return divide_all<uint64_t>(by, target, count);
  }
}

Scalar reciprocal(int type, int of) {
  Scalar made;
  std::memcpy(made.bytes, stored(dtype_of(type), 1.0 / of).data(), sizeof made.bytes);
  return made;
}

}  // namespace hetcomm::emulated
