#include "base/dtype.h"

namespace hetcomm {
namespace {

constexpr const char* kReduceOpNames[] = {
#define X(name) #name,
    HETCOMM_REDUCE_OPS(X)
#undef X
};

}  // namespace

const char* name(ReduceOp op) { return kReduceOpNames[static_cast<size_t>(op)]; }

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
