#include "plan/plan.h"

#include <algorithm>
#include <bit>
#include <charconv>

#include "base/status.h"
#include "codec/codec.h"
#include "plan/steps.h"

namespace hetcomm {
namespace {

constexpr size_t kEncodedGrain = 16;  // so that encoded ranges have whole elements of any dtype

constexpr const char* kCollectives[] = {"all_reduce",     "broadcast",  "reduce", "all_gather",
                                        "reduce_scatter", "all_to_all", "gather", "scatter",
                                        "barrier",        "send",       "recv"};
constexpr const char* kSpaceNames[] = {"input", "output", "scratch", "staging", "residual"};

std::string list(const std::vector<int>& values) {
  std::string text;
  for (int value : values) text += (text.empty() ? "" : ", ") + std::to_string(value);
  return text;
}

std::string number(double value) {
  char text[32];  // the shortest text of the value
  return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
}

}  // namespace

const std::vector<const StepKind*>& step_kinds() {
  static const std::vector<const StepKind*> kinds(std::begin(steps::all), std::end(steps::all));
  return kinds;
}

int64_t Range::encoded_bytes() const {
  const size_t most = kEncodedHeader + codec->capacity(dtype, static_cast<size_t>(count));
  return static_cast<int64_t>((most + kEncodedGrain - 1) / kEncodedGrain * kEncodedGrain);
}

int64_t Range::message_bytes() const {
  if (!codec) return plain_bytes();
  if (!codec->lossless()) {
    return static_cast<int64_t>(codec->capacity(dtype, static_cast<size_t>(count)));
  }
  return static_cast<int64_t>(static_cast<__int128>(plain_bytes()) * codec->expected(dtype) / 1000);
}

std::string describe(const Range& range) {
  const int64_t first = range.offset / static_cast<int64_t>(size_of(range.dtype));
  return std::string(name(range.space)) + "[" + std::to_string(first) + ", " +
         std::to_string(first + range.count) + ")" +
         (range.codec ? std::string(" ") + range.codec->name() : "");
}

bool Step::in_staging() const {
  const auto staged = [](const Range& range) {
    return range.space == Space::staging || range.space == Space::residual;
  };
  return (kind->sends || staged(target)) && std::all_of(sources.begin(), sources.end(), staged);
}

std::string to_peer(const Step& step) {
  return (step.kind->sends ? " to rank " : " from rank ") + std::to_string(step.peer);
}

const char* name(Collective collective) { return kCollectives[static_cast<size_t>(collective)]; }
const char* name(Space space) { return kSpaceNames[static_cast<size_t>(space)]; }

Collective collective_from_name(const std::string& wanted) {
  std::string known;
  for (size_t i = 0; i < std::size(kCollectives); ++i) {
    if (wanted == kCollectives[i]) return static_cast<Collective>(i);
    known += std::string(i ? ", " : "") + kCollectives[i];
  }
  throw Error(Code::invalid_argument,
              "unknown collective: expected one of " + known + "; got \"" + wanted + "\"");
}

bool has_root(Collective collective) {
  return collective == Collective::broadcast || collective == Collective::reduce ||
         collective == Collective::gather || collective == Collective::scatter;
}

bool has_reduction(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce ||
         collective == Collective::reduce_scatter || collective == Collective::barrier;
}

int64_t Spec::block(int from, int to, int size) const {
  if (splits.empty()) return count;
  if (splits_rank < 0) return splits[static_cast<size_t>(from) * size + to];
  if (from == splits_rank) return splits[to];
  return to == splits_rank ? splits[size + from] : 0;
}

size_t hash(const Spec& spec) {
  uint64_t value = 0x9e3779b97f4a7c15;
  auto mix = [&value](uint64_t part) {
    value = (value ^ part) * 0xff51afd7ed558ccd;
    value ^= value >> 32;
  };
  mix(static_cast<uint64_t>(spec.collective) | static_cast<uint64_t>(spec.dtype) << 8 |
      static_cast<uint64_t>(spec.op) << 16 | static_cast<uint64_t>(spec.in_place) << 24 |
      static_cast<uint64_t>(static_cast<uint32_t>(spec.root)) << 32);
  mix(static_cast<uint64_t>(spec.count));
  mix(std::bit_cast<uint64_t>(spec.factor + 0.0));
  for (int64_t split : spec.splits) mix(static_cast<uint64_t>(split));
  mix(uint64_t{id_of(spec.codec)} << 1 | uint64_t{spec.feedback});
  return value;
}

Scale scale_of(const Spec& spec, int size) {
  if (spec.op == ReduceOp::average) return {static_cast<double>(size), true};
  return {spec.factor, false};
}

std::string describe(const Spec& spec) {
  std::string text = name(spec.collective);
  if (spec.collective == Collective::barrier) return text;
  if (has_reduction(spec.collective)) text += std::string(" ") + name(spec.op);
  if (spec.factor != 1) text += " " + number(spec.factor);
  text += std::string(" ") + name(spec.dtype);
  text += spec.splits.empty() ? " x " + std::to_string(spec.count) : " with unequal blocks";
  if (has_root(spec.collective)) text += ", root " + std::to_string(spec.root);
  if (spec.in_place) text += ", in place";
  if (spec.codec.given) text += ", codec " + name_of(spec.codec);
  if (spec.feedback) text += " with feedback";
  return text;
}

std::string describe(const Step& step) {
  std::string text = step.kind->name;
  if (step.in_island()) {
    int64_t count = 0;
    for (const Piece& piece : step.pieces) count += piece.source.count;
    text.append(" of ").append(std::to_string(step.pieces.size()));
    text.append(step.pieces.size() == 1 ? " piece, " : " pieces, ");
    text.append(std::to_string(count)).append(" elements");
  }
  for (const Range& source : step.sources) text.append(" ").append(describe(source));
  if (step.kind->performer == Performer::rank) text.append(" to");
  if (!step.in_island() && !step.kind->sends) text.append(" ").append(describe(step.target));
  if (step.peer >= 0) {
    text.append(to_peer(step)).append(", message ").append(std::to_string(step.tag));
  }
  if (step.scaled) text += ", scaled";
  return step.after.empty() ? text : text + ", after " + list(step.after);
}

BufferCounts buffer_counts(const Spec& spec, int rank, int size) {
  const int64_t count = spec.count;
  const bool is_root = rank == spec.root;
  BufferCounts unequal{0, 0};
  switch (spec.collective) {
    case Collective::all_reduce:
      return {count, count};
    case Collective::broadcast:
      return {is_root || spec.in_place ? count : 0, count};
    case Collective::reduce:
      return {count, is_root || spec.in_place ? count : 0};
    case Collective::all_gather:
      return {count, count * size};
    case Collective::reduce_scatter:
      return {count * size, count};
    case Collective::gather:
      return {count, is_root ? count * size : 0};
    case Collective::scatter:
      return {is_root ? count * size : 0, count};
    case Collective::all_to_all:
      if (spec.splits.empty()) return {count * size, count * size};
      for (int peer = 0; peer < size; ++peer) {
        unequal.input += spec.block(rank, peer, size);
        unequal.output += spec.block(peer, rank, size);
      }
      return unequal;
    case Collective::send:
      return {count, 0};
    case Collective::recv:
      return {0, count};
    case Collective::barrier:
      return {0, 0};
  }
  return {0, 0};
}

int64_t largest_buffer(const Spec& spec, int size) {
  const auto larger = [&](int rank) {
    const BufferCounts counts = buffer_counts(spec, rank, size);
    return std::max(counts.input, counts.output);
  };
  // With equal blocks no rank has more than the root.
  int64_t count = larger(spec.splits_rank >= 0 ? spec.splits_rank : spec.root);
  for (int rank = 0; rank < size && !spec.splits.empty() && spec.splits_rank < 0; ++rank) {
    count = std::max(count, larger(rank));
  }
  return count * static_cast<int64_t>(size_of(spec.dtype));
}

int64_t residual_count(const Spec& spec, int size) {
  return largest_buffer(spec, size) / static_cast<int64_t>(size_of(spec.dtype));
}

}  // namespace hetcomm
