#include "exec/operation.h"

#include <bit>

#include "base/fnv.h"

namespace hetcomm {

uint64_t hash(const CallDescriptor& call) {
  uint64_t value = kFnvBasis;
  for (uint64_t word : {call.sequence, call.count, uint64_t{call.collective} << 32 | call.root,
                        uint64_t{call.dtype} << 32 | call.op,
                        std::bit_cast<uint64_t>(call.factor + 0.0), call.history}) {
    value = (value ^ word) * 0x9e3779b97f4a7c15;
    value ^= value >> 29;
  }
  return value;
}

std::string describe(const Spec& spec, const Operation& operation) {
  const std::string text = describe(spec);
  if (!is_message(spec.collective)) return text + " #" + std::to_string(operation.call.sequence);
  return text + " with rank " + std::to_string(spec.root) + " tag " +
         std::to_string(operation.user_tag);
}

}  // namespace hetcomm
