#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "base/status.h"
#include "health/rail_watch.h"
#include "island/island.h"
#include "plan/codec_choice.h"

namespace hetcomm {

// A state of a rank takes so many records at most, of so many bytes each.
inline constexpr uint64_t kMostParts = 8;
inline constexpr size_t kPartBytes = 32 << 10;

// The first cause of a failure.
struct FailureNews {
  Status why;
};

// The last connection to a rank has ended without a goodbye, or the rank's host is unreachable.
struct LossNews {
  int rank = 0;
  uint64_t silence = 0;  // of the unreachable host, in ms; 0 after the end of the connection
};

// A collective that is older than one second, or in dispute.
struct StallNews {
  CallDescriptor call{};
  std::string caller;  // the source line that waits, if known
};

// The sender leaves the group.
struct GoodbyeNews {
  uint64_t calls = 0;   // collectives that it took part in
  uint64_t rails = 0;   // the number of lost rails whose first call it knows
  std::string refusal;  // why its next call was refused; empty without a refusal
};

// The sender's call was refused, so the sender is missing in this collective.
struct RefusalNews {
  uint64_t sequence = 0;
  Status why;
};

// What an automatic codec did on some ranks, or on all; see TreeReduce.
struct FiguresNews {
  std::string trial;
  int64_t round = 0;
  CodecFigures figures;

  auto key() const { return std::pair(trial, round); }
  void combine(const FiguresNews& part) { figures.add(part.figures); }
};

// A rank asks all ranks of its group for their state.
struct Inquiry {
  int asker = 0;
  uint64_t number = 0;  // counted by the asker
  // steps: also those that are over; pace: see pace.h; presence: nothing but an answer
  enum class Detail : uint64_t { operations, steps, pace, presence };
  Detail detail = Detail::operations;
  // One inquiry is enough for a failure of the group, and for a call that is close to its timeout.
  enum class Occasion : uint64_t { request, failure, timeout };
  Occasion occasion = Occasion::request;
  uint64_t sequence = 0;  // timeout: of the call; pace: of the first call to tell
};

// A part of the packed state of a rank.
struct AnswerNews {
  int asker = 0;
  uint64_t number = 0;  // of the inquiry
  int rank = 0;
  uint64_t part = 0, parts = 1;
  std::string text;
};

// A rank is silent, or gives signs of life again.
struct SilenceNews {
  int rank = 0;
  bool ended = false;
};

// For whom a collective close to its timeout likely waits.
struct CulpritNews {
  uint64_t sequence = 0;
  Status why;
};

// The next call of some ranks, or of all, when they learnt of a lost rail. The greatest call
// counts; see TreeReduce.
struct FirstCallNews {
  int64_t rail = 0;  // the number of the lost rail, from 1
  int64_t call = 0;

  int64_t key() const { return rail; }
  void combine(const FirstCallNews& part) { call = std::max(call, part.call); }
};

// A record that one rank floods to all ranks over the control connections, or tells a neighbour.
// RailEnds is the news of a lost rail.
using News = std::variant<FailureNews, StallNews, GoodbyeNews, RefusalNews, FiguresNews, Inquiry,
                          AnswerNews, SilenceNews, RailEnds, CulpritNews, FirstCallNews, LossNews>;

// Such news is told, and never floods.
inline bool is_for_neighbour(const News& news) {
  return std::holds_alternative<FiguresNews>(news) || std::holds_alternative<AnswerNews>(news) ||
         std::holds_alternative<FirstCallNews>(news);
}

// Shortens long texts in the middle, so that the record fits a frame.
std::string pack(const News& news);
// Throws Error(invalid_argument) on a malformed record of the rank `origin`.
News unpack_news(const std::string& bytes, int origin, int size);

}  // namespace hetcomm
