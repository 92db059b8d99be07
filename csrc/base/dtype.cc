#include "base/dtype.h"

#include "base/status.h"

namespace hetcomm {
namespace {

constexpr const char* kReduceOpNames[] = {
#define X(name) #name,
    HETCOMM_REDUCE_OPS(X)
#undef X
};

}  // namespace

const char* name(ReduceOp op) { return kReduceOpNames[static_cast<size_t>(op)]; }

Dtype dtype_from_name(const std::string& wanted) {
  std::string known;
  for (const DtypeRow& row : kDtypeRows) {
    if (wanted == row.name) return row.dtype;
    known += std::string(known.empty() ? "" : ", ") + row.name;
  }
  throw Error(Code::invalid_argument,
              "unknown dtype: expected one of " + known + "; got " + wanted);
}

ReduceOp reduce_op_from_name(const std::string& wanted) {
  std::string known;
  for (size_t i = 0; i < std::size(kReduceOpNames); ++i) {
    if (wanted == kReduceOpNames[i]) return static_cast<ReduceOp>(i);
    known += std::string(i ? ", " : "") + kReduceOpNames[i];
  }
  throw Error(Code::invalid_argument,
              "unknown reduce operation: expected one of " + known + "; got " + wanted);
}

bool reducible(Dtype dtype, ReduceOp op) {
  const bool bitwise = op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
  switch (class_of(dtype)) {
    case DtypeClass::floating:
      return !bitwise;
    case DtypeClass::integral:
    case DtypeClass::boolean:
      return !scales(op);
    case DtypeClass::moved:
      return false;
  }
  return false;
}

bool ccl_reduces(Dtype dtype, ReduceOp op) {
  if (!reducible(dtype, op) || op == ReduceOp::bxor || row_of(dtype).ccl < 0) return false;
  return class_of(dtype) == DtypeClass::boolean || (op != ReduceOp::band && op != ReduceOp::bor);
}

}  // namespace hetcomm
