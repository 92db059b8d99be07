#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "plan/byte_map.h"
#include "plan/plan.h"
#include "topology/topology.h"

namespace hetcomm {

// The last steps that touched each byte of one buffer.
class AccessMap {
 public:
  // Records that a step reads or writes the range; appends the steps that it has to wait for.
  void read(const Range& range, int step, std::vector<int>& waits_for);
  void write(const Range& range, int step, std::vector<int>& waits_for);
  // The last step that wrote one of the bytes; -1 for none.
  int last_write(const Range& range);

 private:
  struct Access {
    int written = -1;        // the last step that wrote the bytes
    std::vector<int> reads;  // the steps that read the bytes since
  };
  ByteMap<Access> accesses_;
};

// A buffer and its first chunk, in any unit.
struct Division {
  int64_t whole = 1, first = 1;
};

// Algorithms describe a collective for all ranks at once, in any order that a serial execution
// could take. The builder records the steps of each rank and lowers the steps of ranks with device
// memory. It derives what each step waits for from the ranges that the steps read and write. So a
// send always has its recv, and no dependency can be forgotten. The builder also places the scale
// of the operation (scaling.cc). Use once, on one thread.
class PlanBuilder {
 public:
  // Records the steps of `ranks`; for a price only those of the first chunk. `codec` encodes long
  // transfers between hosts, or between islands if all ranks are on one host; null for none.
  PlanBuilder(const Topology& topology, const Spec& spec, const std::vector<int>& ranks,
              const Codec* codec = nullptr, bool for_price = false);

  const Topology& topology() const { return topology_; }
  const Spec& spec() const { return spec_; }
  // Whether it records the steps of the rank, or of one of these; island i has owners[i].
  // Algorithms may leave out steps among other ranks.
  bool builds(int rank) const { return index_[rank] >= 0; }
  bool builds_any(const std::vector<int>& owners) const {
    return std::any_of(islands_.begin(), islands_.end(),
                       [&](int island) { return builds(owners[island]); });
  }
  const std::vector<int>& ranks() const { return ranks_; }
  // The islands of its ranks, ascending.
  const std::vector<int>& islands() const { return islands_; }
  bool builds_island(int island) const {
    return std::binary_search(islands_.begin(), islands_.end(), island);
  }
  // An algorithm does its buffer of `whole` in so many chunks, the first with `first` of it.
  // Returns the number of chunks to record.
  int divide(int chunks, int64_t whole, int64_t first);
  // The whole is so many times the first chunk.
  const Division& division() const { return division_; }

  // Elements of the input and the output.
  Range input(int64_t first, int64_t count) const { return elements(Space::input, first, count); }
  Range output(int64_t first, int64_t count) const { return elements(Space::output, first, count); }

  // Island collectives. Empty pieces are dropped. Adjacent pieces between the same ranks are
  // joined. In islands of one member pieces become copies. Targets must not overlap on any member.
  // An all_to_all lists all pieces, or in a native island those of its ranks.
  void island_all_reduce(int island, const std::vector<Piece>& pieces);
  void island_reduce_scatter(int island, const std::vector<Piece>& pieces);
  void island_all_gather(int island, const std::vector<Piece>& pieces);
  void island_all_to_all(int island, const std::vector<Piece>& pieces);
  bool lists_all(int rank) const;  // of this member in an all_to_all

  // An empty range or a copy onto itself makes no step. A transfer is a send and a recv, or several
  // of both where an end is staged. A codec adds steps that encode and decode.
  void transfer(int from, const Range& source, int to, const Range& target,
                bool even_if_empty = false);
  void copy(int rank, const Range& source, const Range& target);
  void reduce(int rank, const std::vector<Range>& sources, const Range& target);
  // A lossy codec changes values, so algorithms say where. Whether `piece`, which passes between
  // `ranks`, is then rounded by the codec: equal in the builds of all ranks.
  bool rounds(const std::vector<int>& ranks, const Range& piece) const;
  bool lossy() const;  // whether any piece may be rounded
  // The memory of plain elements, for encoded ones.
  Range encoded(const Range& slot) const;
  // Encodes once for all receivers, in memory of encoded(). transfer() moves the result, reduce()
  // and decode() read it. `elements`: of the input or output; their residual is at that place.
  void encode(int rank, const Range& source, const Range& target, const Range& elements);
  void decode(int rank, const Range& source, const Range& target);

  // A step of any kind of Performer::rank.
  void own_step(const StepKind& kind, int rank, const std::vector<Range>& sources,
                const Range& target);

  // Scratch of `count` elements on `rank`, or at one offset on all ranks. Reusing a range is safe:
  // the builder orders the uses. Pieces name scratch of other members, so each member's build must
  // reserve it alike.
  Range scratch(int rank, int64_t count) { return scratch(rank, rank + 1, count); }
  Range scratch_on_all(int64_t count) { return scratch(0, topology_.size(), count); }

  Plan take(int rank, std::string algorithm);

 private:
  // Encoded elements that may be sent to further ranks.
  struct Encoded {
    Range range;
    int step;  // that encoded them
  };
  struct RankState {
    Plan plan;
    AccessMap accesses[kSpaces];                                // by Space
    std::vector<Step> unlowered;                                // of a rank with device memory
    std::map<int, int> sent, received;                          // messages so far, by peer
    std::map<std::pair<int, bool>, std::vector<int>> messages;  // steps, by peer, whether it sends
    std::map<std::tuple<Space, int64_t, int64_t>, Encoded> encoded;  // by the elements' range
  };

  Range elements(Space space, int64_t first, int64_t count) const {
    return Range{space, 0, 0, spec_.dtype}.part(first, count);
  }
  RankState& state(int rank) { return states_[index_[rank]]; }
  // The range in memory of a range that an algorithm names: the input may be in place or scaled.
  Range placed(Range range) const;
  Range scratch(int first, int end, int64_t count);    // on ranks [first, end)
  int64_t reserve(int first, int end, int64_t bytes);  // likewise; returns the offset
  void place_scale();
  void scale(int rank, const Range& source, const Range& target);
  void scale_outputs(int rank);
  void island_step(const StepKind& kind, int island, const std::vector<Piece>& pieces);
  std::vector<Piece> joined(const std::vector<Piece>& pieces, bool exchange) const;
  void message(int from, const Range& source, int to, const Range& target);
  bool encodes(int from, int to, const Range& source);
  void encoded_transfer(int from, const Range& source, int to, const Range& target);
  Range encoded_slot(int rank, int peer, bool sends, int64_t count);
  Range encode_once(int rank, const Range& source, const Range& slot);
  void append(int rank, Step step);
  void add(RankState& state, int rank, Step step);
  static void wait_for_number(RankState& state, Step& step, int index);

  const Topology& topology_;
  Spec spec_;
  std::vector<int> ranks_;
  std::vector<int> index_;  // in states_, by rank; -1: its steps are not recorded
  std::vector<int> islands_;
  const Codec* codec_;
  Space contributions_;         // holds the input in the words of algorithms
  bool island_scales_ = false;  // island reductions apply the scale
  bool output_scales_ = false;  // the last steps scale the output
  bool for_price_;
  Division division_;
  std::vector<RankState> states_;
  std::vector<int64_t> scratch_bytes_;  // by rank
  struct EncodedSlots {
    std::vector<Range> slots;
    int next = 0;
  };
  std::map<std::pair<int, int>, bool> striped_;               // links so far, by their ranks
  std::map<std::tuple<int, int, bool>, EncodedSlots> slots_;  // by rank, peer, whether it sends
};

// The ranges that a step of `rank` reads and writes.
std::vector<Range> reads(const Step& step, int rank);
std::vector<Range> writes(const Step& step, int rank);
// Residuals are never copied between device memory and staging.
std::vector<Range> without_residuals(std::vector<Range> ranges);

}  // namespace hetcomm
