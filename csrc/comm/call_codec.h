#pragma once

#include <memory>
#include <string>

#include "codec/codec.h"
#include "exec/feedback.h"
#include "plan/plan.h"

namespace hetcomm {

// The codec of the collectives that a thread starts next, instead of that of their group.
struct CallCodec {
  CodecSetting setting = kCodecOfGroup;
  std::shared_ptr<Feedback> feedback;  // null: none
  std::string key;                     // of the residuals; their calls are numbered
  int calls = 0;

  // Messages and barriers have no codec.
  void apply(Spec& spec) const;
  // The residual of the next call; null without feedback. Throws Error(invalid_argument).
  std::shared_ptr<Residual> residual(const Spec& spec, int size);

  static CallCodec& of_thread();
};

}  // namespace hetcomm
