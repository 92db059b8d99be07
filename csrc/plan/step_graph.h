#pragma once

#include <span>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "topology/topology.h"

namespace hetcomm {

// The plans of all ranks as one graph: each send is matched with its recv, each island step with
// the island steps of the other members. The checker and the cost model replay plans over it. Steps
// are numbered through all plans, rank 0 first. Refers to the plans, which must outlive it.
class StepGraph {
 public:
  // One collective of an island: an island step of each member.
  struct IslandCollective {
    int island;
    std::vector<int> steps;     // in the order of the island's members
    std::vector<Piece> pieces;  // of all members
  };

  // Malformed plans go into errors(). Replay the graph only without errors.
  StepGraph(const Topology& topology, const std::vector<Plan>& plans);

  const std::vector<std::string>& errors() const { return errors_; }
  int steps() const { return first_.back(); }
  int rank_of(int step) const { return rank_of_[step]; }
  int index_of(int step) const { return step - first_[rank_of_[step]]; }
  const Step& step(int step) const { return plans_[rank_of_[step]].steps[index_of(step)]; }

  // By step: the number of steps of its rank that must complete first. The island step before an
  // island step counts.
  const std::vector<int>& waits() const { return waits_; }
  // The steps that wait for this step.
  std::span<const int> dependents(int step) const {
    return {dependents_.data() + offsets_[step], dependents_.data() + offsets_[step + 1]};
  }
  // The recv of a send, or the send of a recv; -1 for any other step.
  int partner(int step) const { return partner_[step]; }
  // The index of its island collective; -1 unless it is an island step.
  int island_collective_of(int step) const { return island_collective_of_[step]; }
  const std::vector<IslandCollective>& collectives() const { return collectives_; }

  std::string describe(int step) const;  // "rank 3 step 12 (send to rank 5, tag 0)"

 private:
  bool check_plans(const Topology& topology);
  void match_messages();
  void match_island_steps(const Topology& topology);
  std::vector<Piece> pieces_of_all(const IslandCollective& collective, const Topology& topology);
  void find_dependents();

  const std::vector<Plan>& plans_;
  std::vector<int> first_{0}, rank_of_, waits_, offsets_, dependents_, partner_,
      island_collective_of_;
  std::vector<IslandCollective> collectives_;
  std::vector<std::string> errors_;
};

// "rank 3 step 12 (send to rank 5, tag 0)"
std::string describe(const Plan& plan, int index);

}  // namespace hetcomm
