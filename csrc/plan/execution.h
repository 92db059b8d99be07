#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/races.h"
#include "plan/step_graph.h"
#include "plan/symbolic.h"
#include "topology/topology.h"

namespace hetcomm {

// Runs all ranks' plans on symbols, on one thread: a step starts when its graph says so, a send
// completes only together with its recv, island steps when all members are there. Use once; refers
// to the arguments of its constructor.
class Execution {
 public:
  Execution(const Topology& topology, const std::vector<Plan>& plans, const StepGraph& graph,
            const std::vector<std::vector<Run>>& inputs);

  // Until nothing can start. Returns the first errors, at most `most`, deadlock included.
  std::vector<std::string> run(size_t most);

  const Terms& terms() const { return terms_; }
  void read(int rank, const Range& range, std::vector<Run>& value) const;
  const std::vector<Access>& accesses(int rank) const { return accesses_[rank]; }
  std::string describe(const Run& run) const;
  // What a run is of a range that was read.
  static Range range_of(const Range& range, const Run& run);
  std::string describe(const Access& access) const;

 private:
  using Value = std::vector<Run>;

  static constexpr int kSpaces = 4;

  int buffer(Space space) const;
  SymbolicMemory& memory(int rank, Space space) { return memory_[kSpaces * rank + buffer(space)]; }
  int64_t capacity(int rank, Space space) const;  // bytes
  bool same_place(const Range& a, const Range& b) const;
  bool reachable(int step, const Range& range, const char* verb);
  void load(int step, int part, const Range& range, Value& value);
  void store(int step, int part, const Range& range, const Value& value);
  void add(int step, const Range& range, Value& sum, const Value& more, Terms::Kind kind);
  void scale(int step, const Range& range, Value& value, Terms::Kind kind);
  void apply(int step, Value& value);
  void start(int step);
  void complete(int step);
  void perform_local(int step);
  void perform_island(const StepGraph::Meeting& meeting);
  void perform_piece(const StepGraph::Meeting& meeting, int part, const Piece& piece);
  void report(int step, const std::string& text);
  void report_deadlock();

  const Topology& topology_;
  const std::vector<Plan>& plans_;
  const StepGraph& graph_;
  const Spec& spec_;
  const int64_t element_;  // bytes
  Terms terms_;
  std::vector<SymbolicMemory> memory_;  // kSpaces for each rank
  std::vector<std::vector<Access>> accesses_;
  std::vector<int> waits_;    // for each step; -1 once it is complete
  std::vector<int> arrived_;  // for each meeting
  std::vector<int> ready_;
  std::vector<std::string> errors_;
  size_t most_errors_ = 0;
};

}  // namespace hetcomm
