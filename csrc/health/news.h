#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "island/island.h"
#include "plan/codec_choice.h"

namespace hetcomm {

// A record that one rank floods to all ranks over the control connections, or tells a neighbour.
struct News {
  enum class Kind : uint64_t { failure, stall, goodbye, refusal, figures };
  Kind kind = Kind::failure;
  uint64_t sequence = 0;  // goodbye: number of collectives joined; refusal: the refused collective
  CallDescriptor call{};  // stall: the stalled call
  Status why;             // failure, refusal; goodbye: the refusal of the next call, or ok
  // figures, of some ranks or all: see Health::report()
  std::string trial = {};
  int64_t round = 0;
  CodecFigures figures = {};

  // Shortens long texts in the middle, so that the record fits a frame.
  std::string pack() const;
  // Throws Error(invalid_argument) on a malformed record.
  static News unpack(const std::string& bytes, int origin, int size);
};

}  // namespace hetcomm
