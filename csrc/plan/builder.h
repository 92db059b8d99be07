#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "topology/topology.h"

namespace hetcomm {

// Which steps last touched each byte of one buffer: adjacent cells that cover it from 0 on.
class AccessMap {
 public:
  AccessMap() : cells_{{0, {}}} {}

  // Appends the steps that a read or write of `range` has to wait for; the write is then recorded.
  void read(const Range& range, int step, std::vector<int>& waits_for);
  void write(const Range& range, int step, std::vector<int>& waits_for);

 private:
  struct Cell {
    int written = -1;        // the last step that wrote it
    std::vector<int> reads;  // the steps that read it since
  };
  using Cells = std::map<int64_t, Cell>;  // by first byte; each ends where the next begins

  Cells::iterator split(int64_t at);  // the cell that begins at `at`

  Cells cells_;
};

// Algorithms describe a collective for all ranks at once by calling these in any order that a
// serial execution could take; the builder records each rank's steps, lowers those of ranks with
// device memory, and derives what each step waits for from the ranges it reads and writes. So a
// send always has its recv, and no dependency can be forgotten. Nor do algorithms know of scales:
// the builder has the one island that there is apply it, or multiplies all inputs first, or divides
// all outputs last (scaling.cc). Use once, on one thread.
class PlanBuilder {
 public:
  // Records the steps of `only_rank`, or of all ranks when it is -1.
  PlanBuilder(const Topology& topology, const Spec& spec, int only_rank = -1);

  const Topology& topology() const { return topology_; }
  const Spec& spec() const { return spec_; }

  // Elements of the input and the output.
  Range input(int64_t first, int64_t count) const { return elements(Space::input, first, count); }
  Range output(int64_t first, int64_t count) const { return elements(Space::output, first, count); }

  // Island collectives; empty pieces are dropped, adjacent ones between the same ranks joined, and
  // in islands of one member they become copies. Targets must not overlap on any member.
  void island_all_reduce(int island, const std::vector<Piece>& pieces);
  void island_reduce_scatter(int island, const std::vector<Piece>& pieces);
  void island_all_gather(int island, const std::vector<Piece>& pieces);
  void island_all_to_all(int island, const std::vector<Piece>& pieces);

  // Nothing happens for an empty range or a copy onto itself. A transfer is a send and a recv, or
  // several of them where an end is staged.
  void transfer(int from, const Range& source, int to, const Range& target,
                bool even_if_empty = false);
  void copy(int rank, const Range& source, const Range& target);
  void reduce(int rank, const std::vector<Range>& sources, const Range& target);
  // A step of another kind that the rank carries out by itself.
  void own_step(const StepKind& kind, int rank, const std::vector<Range>& sources,
                const Range& target);

  // Scratch of `count` elements on `rank`, or at one offset on all `ranks`. Reusing a range is
  // safe: the builder orders the uses.
  Range scratch(int rank, int64_t count) { return scratch(std::vector<int>{rank}, count); }
  Range scratch(const std::vector<int>& ranks, int64_t count);

  Plan take(int rank, std::string algorithm);

 private:
  struct RankState {
    Plan plan;
    AccessMap accesses[4];              // by Space
    std::vector<Step> unlowered;        // of a rank with device memory
    std::map<int, int> sent, received;  // messages so far, by peer
  };

  Range elements(Space space, int64_t first, int64_t count) const {
    return Range{space, 0, 0, spec_.dtype}.part(first, count);
  }
  RankState& state(int rank) { return ranks_[only_rank_ < 0 ? rank : 0]; }
  bool recorded(int rank) const { return only_rank_ < 0 || rank == only_rank_; }
  bool recorded_island(int island) const;
  // With in_place, the input is the output; once contributions are scaled, it is where they lie.
  Range placed(Range range) const;
  void place_scale();
  void scale(int rank, const Range& source, const Range& target);
  void scale_outputs(int rank);
  void island_step(const StepKind& kind, int island, const std::vector<Piece>& pieces);
  void message(int from, const Range& source, int to, const Range& target);
  void record(int rank, Step step);
  void add(RankState& state, int rank, Step step);

  const Topology& topology_;
  Spec spec_;
  int only_rank_;
  Space contributions_;                 // what algorithms name input
  bool island_scales_ = false;          // its reductions do
  bool output_scales_ = false;          // what they come to is scaled in the end
  std::vector<RankState> ranks_;        // those that are recorded
  std::vector<int64_t> scratch_bytes_;  // by rank
};

// The ranges that a step of `rank` reads and writes.
std::vector<Range> reads(const Step& step, int rank);
std::vector<Range> writes(const Step& step, int rank);

}  // namespace hetcomm
