#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "plan/codec_choice.h"
#include "plan/plan.h"

namespace hetcomm {

// The calls of one size class for which "auto" took a codec, numbered from 1 on every rank alike.
// Ranks report what the codec did when they make call 4, 32, 256, ... The figures of all ranks
// decide on calls from 8, 64, 512, ... on. So every rank encodes the same calls. A call may start
// only once it is decided. Thread-safe.
class CodecTrial {
 public:
  // Whether the codec pays, by the figures of all ranks: equal on every rank.
  using Judge = std::function<bool(const CodecTrial& trial, int64_t round, const CodecFigures&)>;
  CodecTrial(std::string name, Judge judge) : name_(std::move(name)), judge_(std::move(judge)) {}

  // The round whose figures a rank reports with this call; 0 for none.
  static int64_t reported_by(int64_t call);
  // The last round that decides on the call; 0 for none.
  static int64_t awaited_by(int64_t call);
  static int64_t first_call(int64_t round);  // on which the round decides

  const std::string& name() const { return name_; }
  bool decided(int64_t call) const { return rounds_ >= awaited_by(call); }
  // Of a decided call. A codec that does not pay never comes back.
  bool encodes(int64_t call) const { return call < stops_at_; }

  // The host of this rank has performed a step that encodes or decodes.
  void record_work(const Step& step, std::chrono::nanoseconds time);
  void record_message(int64_t plain, int64_t encoded);  // bytes that this rank sends
  CodecFigures take_figures();                          // of this rank, since the last time
  // Takes the figures of all ranks; round after round.
  void decide(int64_t round, const CodecFigures& figures);

  int64_t calls = 0;  // so far; for the communicator, which numbers them

 private:
  const std::string name_;
  const Judge judge_;
  std::atomic<int64_t> plain_{0}, encoded_{0}, work_{0}, time_{0};
  std::atomic<int64_t> rounds_{0}, stops_at_{INT64_MAX};
};

}  // namespace hetcomm
