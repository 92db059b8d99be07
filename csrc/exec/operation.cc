#include "exec/operation.h"

#include <bit>
#include <cstdio>

#include "base/fnv.h"

namespace hetcomm {
namespace {

constexpr uint32_t kFeedback = 1u << 30;  // in CallDescriptor::codec
constexpr const char* kUnknown = "an unknown operation";

bool known(const CallDescriptor& call) {
  return call.collective <= static_cast<uint16_t>(Collective::recv) && call.dtype < kDtypes &&
         call.op < kReduceOps;
}

Spec spec_of(const CallDescriptor& call) {
  return {.collective = static_cast<Collective>(call.collective),
          .dtype = static_cast<Dtype>(call.dtype),
          .op = static_cast<ReduceOp>(call.op),
          .factor = call.factor,
          .root = static_cast<int>(call.root),
          .count = static_cast<int64_t>(call.count)};
}

}  // namespace

CallDescriptor make_descriptor(const Spec& spec, uint64_t sequence, uint64_t history) {
  return {.sequence = sequence,
          .count = static_cast<uint64_t>(spec.count),
          .root = static_cast<uint32_t>(spec.root),
          .collective = static_cast<uint16_t>(spec.collective),
          .dtype = static_cast<uint8_t>(spec.dtype),
          .op = static_cast<uint8_t>(spec.op),
          .factor = spec.factor,
          .history = history,
          .codec = id_of(spec.codec) ^ (spec.feedback ? kFeedback : 0)};
}

uint64_t hash(const CallDescriptor& call) {
  uint64_t value = kFnvBasis;
  for (uint64_t word : {call.sequence, call.count, uint64_t{call.collective} << 32 | call.root,
                        uint64_t{call.dtype} << 32 | call.op, uint64_t{call.codec},
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

std::string describe(const CallDescriptor& call, uint32_t user_tag) {
  return known(call) ? describe(spec_of(call), {.call = call, .user_tag = user_tag}) : kUnknown;
}

std::string describe_call(const CallDescriptor& call) {
  if (!known(call)) return kUnknown;
  const bool feedback = call.codec & kFeedback;
  const uint32_t codec = call.codec & ~kFeedback;
  char history[32];
  std::snprintf(history, sizeof history, " (history %04llx)",
                static_cast<unsigned long long>(call.history & 0xffff));
  return describe(spec_of(call)) + (codec ? ", codec " + name_of_id(codec) : "") +
         (feedback ? " with feedback" : "") + history;
}

}  // namespace hetcomm
