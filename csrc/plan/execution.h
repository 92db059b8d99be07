#pragma once

#include <map>
#include <string>
#include <vector>

#include "plan/byte_map.h"
#include "plan/plan.h"
#include "plan/races.h"
#include "plan/step_graph.h"
#include "plan/symbolic.h"
#include "topology/topology.h"

namespace hetcomm {

// Executes the plans of all ranks on symbols, on one thread. A step starts in the order of the
// graph. A send completes only together with its recv, an island step only together with those of
// all members. Use once; refers to the arguments of its constructor.
class Execution {
 public:
  Execution(const Topology& topology, const std::vector<Plan>& plans, const StepGraph& graph,
            const std::vector<Extents>& inputs);

  // Runs until no step can start. Returns the first errors, at most `most`, deadlock included.
  std::vector<std::string> run(size_t most);

  const Terms& terms() const { return terms_; }
  void read(int rank, const Range& range, Extents& value) const;
  const std::vector<Access>& accesses(int rank) const { return accesses_[rank]; }
  std::string describe(const Extent& extent) const;
  // The part of a range that an extent of its value covers.
  static Range range_of(const Range& range, const Extent& extent);
  std::string describe(const Access& access) const;

 private:
  struct Encoded {
    Range range;
    Extents value;
  };

  int buffer(Space space) const;
  SymbolicMemory& memory(int rank, Space space) { return memory_[kSpaces * rank + buffer(space)]; }
  int64_t capacity(int rank, Space space) const;  // bytes
  bool same_place(const Range& a, const Range& b) const;
  bool reachable(int step, const Range& range, const char* verb);
  bool has_codec(int step, const char* verb, const Range& range, const Extents& value);
  void load(int step, int part, const Range& range, Extents& value);
  void load_encoded(int step, const Range& range, Extents& value);
  const Extents* encoded_in(int rank, const Range& range) const;
  void store(int step, int part, const Range& range, const Extents& value);
  void add(int step, const Range& range, Extents& sum, const Extents& more, Terms::Kind kind);
  void scale(int step, const Range& range, Extents& value, Terms::Kind kind);
  void apply(int step, Extents& value);
  void decode(int step, const Range& range, Extents& value);
  void update_residual(int step, const Extents& value);
  void start(int step);
  void complete(int step);
  void perform_local(int step);
  void perform_island(const StepGraph::IslandCollective& collective);
  void perform_piece(const StepGraph::IslandCollective& collective, int part, const Piece& piece);
  void report(int step, const std::string& text);
  void report_deadlock();

  const Topology& topology_;
  const std::vector<Plan>& plans_;
  const StepGraph& graph_;
  const Spec& spec_;
  const int64_t element_;  // bytes
  Terms terms_;
  std::vector<SymbolicMemory> memory_;               // kSpaces for each rank
  std::vector<std::map<int64_t, Encoded>> encoded_;  // by rank and space; by offset
  std::vector<std::vector<Access>> accesses_;
  std::vector<ByteMap<bool>> updated_;  // by rank: bytes of the residual
  std::vector<int> waits_;              // for each step; -1 once it is complete
  std::vector<int> arrived_;            // members, for each island collective
  std::vector<int> ready_;
  std::vector<std::string> errors_;
  size_t most_errors_ = 0;
};

}  // namespace hetcomm
