#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "health/rail_watch.h"
#include "island/island.h"
#include "plan/codec_choice.h"

namespace hetcomm {

// A state of a rank takes so many records at most, of so many bytes each.
inline constexpr uint64_t kMostParts = 8;
inline constexpr size_t kPartBytes = 32 << 10;

// A rank asks all ranks of its group for their state.
struct Inquiry {
  int asker = 0;
  uint64_t number = 0;
  enum class Detail : uint64_t { operations, steps, pace };
  Detail detail = Detail::operations;  // steps: also those that are over; pace: see pace.h
  // One inquiry is enough for a failure of the group, and for a call that is close to its timeout.
  enum class Occasion : uint64_t { request, failure, timeout };
  Occasion occasion = Occasion::request;
  uint64_t sequence = 0;  // timeout: of the call; pace: of the first call to tell

  auto operator<=>(const Inquiry&) const = default;
};

// A record that one rank floods to all ranks over the control connections, or tells a neighbour.
struct News {
  enum class Kind : uint64_t {
    failure,
    stall,
    goodbye,
    refusal,
    figures,
    inquiry,
    answer,
    silence,
    rail,
    culprit
  };
  Kind kind = Kind::failure;
  // goodbye: number of collectives joined; refusal: the refused collective; culprit: the collective
  // that waits
  uint64_t sequence = 0;
  uint64_t rails = 0;       // goodbye: of how many lost rails the rank knows the first call
  int about = -1;           // silence: the silent rank
  bool ended = false;       // silence: the rank answers again
  CallDescriptor call{};    // stall: the stalled call
  std::string caller = {};  // stall: the source line that waits, if known
  // failure, refusal, culprit; goodbye: the refusal of the next call, or ok
  Status why;
  // figures, of some ranks or all: see Health::report()
  std::string trial = {};
  int64_t round = 0;
  CodecFigures figures = {};
  // inquiry: its number, counted by its asker; answer: the inquiry that it answers. See
  // Health::inquire().
  Inquiry inquiry = {};
  // answer: a part of the packed state of a rank.
  int rank = 0;
  uint64_t part = 0, parts = 1;
  std::string text = {};
  RailEnds rail = {};  // rail: no longer joins its ends

  // Shortens long texts in the middle, so that the record fits a frame.
  std::string pack() const;
  // Throws Error(invalid_argument) on a malformed record.
  static News unpack(const std::string& bytes, int origin, int size);
};

}  // namespace hetcomm
