#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"
#include "topology/topology.h"

namespace hetcomm {

// The plans of all ranks as one graph: each send tied to its recv, each island step to those of the
// other members. The checker and the cost model replay plans over it. Steps have one number each,
// those of rank r are first[r] ... first[r + 1]. Refers to the plans, which must outlive it.
class StepGraph {
 public:
  // The moment at which all members of an island are at the same island step.
  struct Meeting {
    int island;
    int ordinal;             // 0 for the first island step of these members
    std::vector<int> steps;  // of the members, in the order of the island
  };

  // What is malformed goes into errors(); replay the graph only if there are none.
  StepGraph(const Topology& topology, const std::vector<Plan>& plans);

  const std::vector<std::string>& errors() const { return errors_; }
  int steps() const { return first_.back(); }
  int first(int rank) const { return first_[rank]; }
  int rank_of(int step) const { return rank_of_[step]; }
  int index_of(int step) const { return step - first_[rank_of_[step]]; }
  const Step& step(int step) const { return plans_[rank_of_[step]].steps[index_of(step)]; }

  // Earlier steps of the same rank that must complete first, the island step before it included.
  const std::vector<int>& waits() const { return waits_; }
  // The steps that wait for this one: begin and end.
  const int* dependents_begin(int step) const { return &dependents_[offsets_[step]]; }
  const int* dependents_end(int step) const { return &dependents_[offsets_[step + 1]]; }
  int partner(int step) const { return partner_[step]; }  // recv of a send and back, -1 if neither
  int meeting_of(int step) const { return meeting_of_[step]; }  // -1 if no island step
  const std::vector<Meeting>& meetings() const { return meetings_; }

  std::string describe(int step) const;  // "rank 3 step 12 (send to rank 5, tag 0)"

 private:
  bool check_plans(const Topology& topology);
  void tie_messages();
  void tie_islands(const Topology& topology);
  void tie_dependencies();

  const std::vector<Plan>& plans_;
  std::vector<int> first_{0}, rank_of_, waits_, offsets_, dependents_, partner_, meeting_of_;
  std::vector<Meeting> meetings_;
  std::vector<std::string> errors_;
};

// "rank 3 step 12 (send to rank 5, tag 0)"
std::string describe(const Plan& plan, int index);

}  // namespace hetcomm
