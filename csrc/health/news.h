#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "island/island.h"

namespace hetcomm {

// A rank tells it to all ranks over the control connections.
struct News {
  enum class Kind : uint64_t { failure, stall, goodbye, refusal };
  Kind kind = Kind::failure;
  uint64_t sequence = 0;  // goodbye: collectives it took part in; refusal: the one it is missing in
  CallDescriptor call{};  // stall: in which it waits
  Status why;             // failure, refusal; goodbye: of its next call, ok if that is not refused

  // Long texts are shortened in the middle, so that a record always fits a frame.
  std::string pack() const;
  // Throws Error(invalid_argument) on anything that pack() of a rank of this group does not give.
  static News unpack(const std::string& bytes, int origin, int size);
};

}  // namespace hetcomm
