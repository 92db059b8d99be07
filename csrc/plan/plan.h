#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "codec/codec.h"
#include "plan/step_kind.h"

namespace hetcomm {

enum class Collective : uint8_t {
  all_reduce,
  broadcast,
  reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  gather,
  scatter,
  barrier,
  send,
  recv
};
const char* name(Collective collective);
Collective collective_from_name(const std::string& name);  // throws Error(invalid_argument)
bool has_root(Collective collective);
inline bool is_message(Collective collective) {
  return collective == Collective::send || collective == Collective::recv;
}
bool has_reduction(Collective collective);

// One call: the key under which a plan is cached. `count` is in elements. For all_reduce, broadcast
// and reduce these are the elements of the whole buffer, for other collectives those of one rank's
// block. The larger buffer then has a block of each rank, in rank order. gather has an output on
// the root only, scatter an input on the root only. broadcast reads the root's input and writes
// every output.
struct Spec {
  Collective collective = Collective::all_reduce;
  Dtype dtype = Dtype::float32;
  ReduceOp op = ReduceOp::sum;
  double factor = 1;  // of premul_sum; 1 for any other operation
  int root = 0;
  int64_t count = 0;
  // Input and output are the same memory. Only all_reduce, reduce and broadcast allow it. The plan
  // names this memory output, never input.
  bool in_place = false;
  // Elements of the unequal blocks of an all_to_all; else empty. Of all ranks, n x n:
  // splits[from * n + to]. Or of `splits_rank` alone, 2 n: to each rank, then from each rank.
  std::vector<int64_t> splits;
  CodecSetting codec = kCodecOfGroup;  // of long messages between hosts
  // A lossy codec adds what earlier calls lost. The residual is float32 memory of the caller, with
  // an element for each element of the largest buffer. All ranks of the call have one.
  bool feedback = false;
  int splits_rank = -1;  // -1: all ranks

  bool operator==(const Spec&) const = default;
  // Elements of one block of an all_to_all of `size` ranks; 0 of blocks that `splits` lacks.
  int64_t block(int from, int to, int size) const;
};
size_t hash(const Spec& spec);
// The scale of the operation among `size` ranks; by 1 for an operation without a scale.
Scale scale_of(const Spec& spec, int size);
std::string describe(const Spec& spec);  // "all_reduce sum float32 x 1024"

// Staging is pinned host memory of a rank whose input, output and scratch are device memory. A rank
// on host memory has no staging. The residual is that of Spec::feedback.
enum class Space : uint8_t { input, output, scratch, staging, residual };
inline constexpr int kSpaces = 5;
const char* name(Space space);

inline constexpr int64_t kCacheLine = 64;  // bytes

// Contiguous elements in a buffer of this rank.
struct Range {
  Space space = Space::input;
  int64_t offset = 0;  // bytes
  int64_t count = 0;   // elements
  Dtype dtype = Dtype::float32;
  const Codec* codec = nullptr;  // of encoded elements

  bool operator==(const Range&) const = default;
  // Of a message with these elements; of encoded ones what the codec expects.
  int64_t message_bytes() const;
  int64_t plain_bytes() const { return count * static_cast<int64_t>(size_of(dtype)); }
  // Of encoded elements the memory that they may take.
  int64_t bytes() const { return codec ? encoded_bytes() : plain_bytes(); }
  int64_t end() const { return offset + bytes(); }
  // Elements first, first + 1, ... of the range, `number` in all. Encoded elements have no parts.
  Range part(int64_t first, int64_t number) const {
    return {space, offset + first * static_cast<int64_t>(size_of(dtype)), number, dtype};
  }
  // The elements in bytes [begin, end) of the same buffer.
  Range within(int64_t begin, int64_t end) const {
    return {space, begin, (end - begin) / static_cast<int64_t>(size_of(dtype)), dtype};
  }

 private:
  int64_t encoded_bytes() const;
};

// A part of an island collective. The kind of step says on which members `source` is read and
// `target` is written. Both have the same count. Their offsets are equal on all members.
struct Piece {
  int from = -1;  // rank, where the kind has a sender
  int to = -1;    // rank, where the kind has a receiver
  Range source;
  Range target;

  bool operator==(const Piece&) const = default;
  bool has(int rank) const { return from == rank || to == rank; }
};

// One entry of a plan. A step starts when all steps of `after` are complete. An island step also
// waits for the island step before it.
struct Step {
  const StepKind* kind = nullptr;  // a row of steps.h
  int peer = -1;                   // rank, for send and recv
  int tag = 0;  // for send and recv: number of this plan's message between the two ranks
  std::vector<Range> sources;
  Range target;
  std::vector<Piece> pieces;  // island steps: see steps.h
  std::vector<int> after;     // indices of earlier steps of this plan
  bool scaled = false;        // a reduction also applies the scale of the operation

  bool operator==(const Step&) const = default;
  bool in_island() const { return kind->performer == Performer::island; }
  bool is_message() const { return kind->performer == Performer::link; }
  bool is_exchange() const { return in_island() && !kind->reduces && !kind->to_all; }
  const Range& message() const { return kind->sends ? sources[0] : target; }  // of send and recv
  bool in_staging() const;  // all ranges lie in host memory; for steps without pieces
};

// "scratch[0, 128)", in elements; " lossless" follows if they are encoded.
std::string describe(const Range& range);
std::string describe(const Step& step);  // "send output[0, 64) to rank 3, message 0, after 2"
std::string to_peer(const Step& step);   // " to rank 3" or " from rank 3", of a message

// The tags of messages on the wire have so many numbers, so a number comes again after as many
// messages from one rank to another. The step of the later message waits for the earlier one.
constexpr int kMessageNumbers = 1 << 12;

// An island step. `members`: `from` and `to` of its pieces as indices in the island, -1 for none.
struct IslandStep {
  int index;  // in the plan
  std::vector<std::pair<int, int>> members;
};

// The order of a plan's steps, ready for the executor.
struct Schedule {
  std::vector<int> waiting;                 // by step: the number of steps it waits for
  std::vector<std::vector<int>> followers;  // by step: the steps that wait for it
  std::vector<int> ready;                   // steps that wait for none, last first; no island steps
  std::vector<IslandStep> island_steps;     // in plan order
  int messages = 0;                         // number of sends and recvs
};

// What one rank does for one collective. Immutable once built; executed any number of times.
struct Plan {
  Spec spec;
  int rank = 0;
  int size = 1;              // ranks in the communicator
  std::string algorithm;     // the row of the selection table, such as "hierarchical_ring"
  std::vector<int> members;  // this rank's island
  std::vector<Step> steps;
  int64_t scratch_bytes = 0;
  int64_t staging_bytes = 0;
  Schedule schedule = {};   // of `steps`; only plans that run have one
  bool auto_codec = false;  // "auto" has taken a codec for the size class
};

// Elements of the buffers that a rank supplies. In place the one buffer has both counts.
struct BufferCounts {
  int64_t input, output;
};
BufferCounts buffer_counts(const Spec& spec, int rank, int size);
// Bytes of the largest buffer that any rank supplies.
int64_t largest_buffer(const Spec& spec, int size);
// Elements of the residual, if the spec has feedback; each has kResidualBytes.
int64_t residual_count(const Spec& spec, int size);
inline constexpr int64_t kResidualBytes = 4;

}  // namespace hetcomm
