#include "comm/call_codec.h"

namespace hetcomm {

CallCodec& CallCodec::of_thread() {
  static thread_local CallCodec codec;
  return codec;
}

void CallCodec::apply(Spec& spec) const {
  if (!setting.given || spec.collective == Collective::barrier || is_message(spec.collective))
    return;
  spec.codec = setting;
  spec.feedback = feedback && setting.lossy() && has_reduction(spec.collective);
}

std::shared_ptr<Residual> CallCodec::residual(const Spec& spec, int size) {
  if (!spec.feedback) return nullptr;
  const std::string numbered = key + "/" + std::to_string(calls++);
  return feedback->at(numbered, static_cast<size_t>(residual_count(spec, size)));
}

}  // namespace hetcomm
