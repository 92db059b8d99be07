#include "plan/step_graph.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace hetcomm {
namespace {

// The expected number of sources; null if the step has it.
const char* expected_sources(const Step& step) {
  const size_t sources = step.sources.size();
  switch (step.kind->sources) {
    case StepKind::Sources::one:
      return sources == 1 ? nullptr : "one source";
    case StepKind::Sources::some:
      return sources > 0 ? nullptr : "sources";
    default:
      return sources == 0 ? nullptr : "no sources";
  }
}

// What a scaled step is expected to be; empty if the step is so.
std::string expected_scale(const Topology& topology, const Spec& spec, int rank, const Step& step) {
  if (!has_reduction(spec.collective) || !scales(spec.op)) {
    return std::string("no scale in ") + hetcomm::describe(spec);
  }
  if (!step.kind->reduces) return "a reduction";
  if (!step.in_island()) return step.sources.size() == 1 ? "" : "one source";
  // An engine divides by the members of its island, and the CPU engine has no factor.
  if (topology.islands().size() > 1) return "the only island";
  return spec.op == ReduceOp::average || topology.native(rank) ? "" : "a native library";
}

}  // namespace

std::string describe(const Plan& plan, int index) {
  const Step& step = plan.steps[index];
  std::string text = "rank " + std::to_string(plan.rank) + " step " + std::to_string(index) + " (" +
                     step.kind->name;
  if (step.is_message()) text += to_peer(step) + ", tag " + std::to_string(step.tag);
  return text + ")";
}

StepGraph::StepGraph(const Topology& topology, const std::vector<Plan>& plans) : plans_(plans) {
  if (!check_plans(topology)) return;
  match_messages();
  match_island_steps(topology);
  find_dependents();
}

std::string StepGraph::describe(int step) const {
  return hetcomm::describe(plans_[rank_of_[step]], index_of(step));
}

// Steps of different ranks can be matched only in plans that pass.
bool StepGraph::check_plans(const Topology& topology) {
  const int size = topology.size();
  if (static_cast<int>(plans_.size()) != size) {
    errors_.push_back("expected one plan for each of " + std::to_string(size) + " ranks; got " +
                      std::to_string(plans_.size()));
    return false;
  }
  for (int rank = 0; rank < size; ++rank) {
    const Plan& plan = plans_[rank];
    const std::string who = "plan of rank " + std::to_string(rank);
    if (plan.rank != rank || plan.size != size) {
      errors_.push_back(who + ": expected rank " + std::to_string(rank) + " of " +
                        std::to_string(size) + "; got rank " + std::to_string(plan.rank) + " of " +
                        std::to_string(plan.size));
    }
    if (!(plan.spec == plans_[0].spec)) {
      errors_.push_back(who + ": expected the spec of rank 0, " +
                        hetcomm::describe(plans_[0].spec) + "; got " +
                        hetcomm::describe(plan.spec));
    }
    if (plan.members != topology.island(topology.island_of(rank))) {
      errors_.push_back(who + ": expected the " +
                        std::to_string(topology.island(topology.island_of(rank)).size()) +
                        " members of its island in the topology; got " +
                        std::to_string(plan.members.size()) + " members, not the same");
    }
    for (int index = 0; index < static_cast<int>(plan.steps.size()); ++index) {
      const Step& step = plan.steps[index];
      for (int before : step.after) {
        if (before >= 0 && before < index) continue;
        errors_.push_back(hetcomm::describe(plan, index) + " waits for step " +
                          std::to_string(before) + "; expected an earlier step of the plan");
      }
      if (const char* sources = expected_sources(step)) {
        errors_.push_back(hetcomm::describe(plan, index) + ": expected " + sources + "; got " +
                          std::to_string(step.sources.size()));
      }
      for (const Piece& piece : step.pieces) {
        if (!piece.source.codec && !piece.target.codec) continue;
        errors_.push_back(hetcomm::describe(plan, index) + ": expected plain elements; got " +
                          hetcomm::describe(piece.source) + " to " +
                          hetcomm::describe(piece.target));
      }
      const bool decodes = step.kind->decodes && !step.sources.empty();
      if (decodes && !step.sources.back().codec) {
        errors_.push_back(hetcomm::describe(plan, index) +
                          " cannot be applied to plain elements; expected encoded ones");
      }
      if (const std::string wanted = expected_scale(topology, plan.spec, rank, step);
          step.scaled && !wanted.empty()) {
        errors_.push_back(hetcomm::describe(plan, index) + " is scaled: expected " + wanted);
      }
      if (step.is_message() && (step.peer < 0 || step.peer >= size || step.peer == rank)) {
        errors_.push_back(hetcomm::describe(plan, index) + ": expected another rank below " +
                          std::to_string(size) + " as peer; got " + std::to_string(step.peer));
      }
    }
    first_.push_back(first_.back() + static_cast<int>(plan.steps.size()));
    rank_of_.insert(rank_of_.end(), plan.steps.size(), rank);
  }
  partner_.assign(steps(), -1);
  island_collective_of_.assign(steps(), -1);
  return errors_.empty();
}

void StepGraph::match_messages() {
  using Message = std::tuple<int, int, int, int>;  // from, to, tag, step
  std::vector<Message> sends, recvs;
  for (int id = 0; id < steps(); ++id) {
    const Step& at = step(id);
    if (!at.is_message()) continue;
    if (at.kind->sends) {
      sends.emplace_back(rank_of_[id], at.peer, at.tag, id);
    } else {
      recvs.emplace_back(at.peer, rank_of_[id], at.tag, id);
    }
  }
  std::sort(sends.begin(), sends.end());
  std::sort(recvs.begin(), recvs.end());
  const auto key = [](const Message& message) {
    return std::tuple(std::get<0>(message), std::get<1>(message), std::get<2>(message));
  };
  for (const auto* messages : {&sends, &recvs}) {
    for (size_t i = 1; i < messages->size(); ++i) {
      if (key((*messages)[i - 1]) != key((*messages)[i])) continue;
      errors_.push_back(describe(std::get<3>((*messages)[i])) + " repeats the tag of step " +
                        std::to_string(index_of(std::get<3>((*messages)[i - 1]))) +
                        "; expected one message for each pair of ranks and tag");
    }
  }
  for (const auto* messages : {&sends, &recvs}) {
    for (size_t i = kMessageNumbers; i < messages->size(); ++i) {
      const auto [from, to, tag, late] = (*messages)[i];
      const auto [other_from, other_to, other_tag, early] = (*messages)[i - kMessageNumbers];
      if (from != other_from || to != other_to || tag != other_tag + kMessageNumbers) continue;
      const std::vector<int>& after = step(late).after;
      if (std::find(after.begin(), after.end(), index_of(early)) != after.end()) continue;
      errors_.push_back(describe(late) + ": expected to wait for step " +
                        std::to_string(index_of(early)) + ", which has its number on the wire");
    }
  }
  for (size_t i = 0, j = 0; i < sends.size() || j < recvs.size();) {
    if (j == recvs.size() || (i < sends.size() && key(sends[i]) < key(recvs[j]))) {
      const int send = std::get<3>(sends[i++]);
      errors_.push_back(describe(send) + " of " + hetcomm::describe(step(send).sources.at(0)) +
                        ": expected a matching recv, got none");
    } else if (i == sends.size() || key(recvs[j]) < key(sends[i])) {
      const int recv = std::get<3>(recvs[j++]);
      errors_.push_back(describe(recv) + " into " + hetcomm::describe(step(recv).target) +
                        ": expected a matching send, got none");
    } else {
      const int send = std::get<3>(sends[i++]), recv = std::get<3>(recvs[j++]);
      partner_[send] = recv;
      partner_[recv] = send;
    }
  }
}

void StepGraph::match_island_steps(const Topology& topology) {
  std::vector<std::vector<int>> island_steps(topology.size());
  for (int id = 0; id < steps(); ++id) {
    if (step(id).in_island()) island_steps[rank_of_[id]].push_back(id);
  }
  for (int island = 0; island < static_cast<int>(topology.islands().size()); ++island) {
    const std::vector<int>& members = topology.island(island);
    const std::vector<int>& leader = island_steps[members[0]];
    for (int member : members) {
      const std::vector<int>& mine = island_steps[member];
      const size_t common = std::min(mine.size(), leader.size());
      for (size_t i = 0; i < common; ++i) {
        const Step &here = step(mine[i]), &there = step(leader[i]);
        const bool alike =
            (here.is_exchange() && topology.native(member)) || here.pieces == there.pieces;
        if (here.kind == there.kind && alike && here.scaled == there.scaled) continue;
        errors_.push_back(describe(mine[i]) + ", island step " + std::to_string(i) +
                          ", differs from " + describe(leader[i]) +
                          "; expected the same kind and pieces on all members of island " +
                          std::to_string(island));
        break;
      }
      if (mine.size() != leader.size()) {
        errors_.push_back("rank " + std::to_string(member) + " has " + std::to_string(mine.size()) +
                          " island steps; expected " + std::to_string(leader.size()) + " as rank " +
                          std::to_string(members[0]) + " of its island has");
      }
    }
    if (!errors_.empty()) continue;
    for (size_t i = 0; i < leader.size(); ++i) {
      IslandCollective collective{island, {}, {}};
      for (int member : members) {
        collective.steps.push_back(island_steps[member][i]);
        island_collective_of_[collective.steps.back()] = static_cast<int>(collectives_.size());
      }
      collective.pieces = pieces_of_all(collective, topology);
      collectives_.push_back(std::move(collective));
    }
  }
}

std::vector<Piece> StepGraph::pieces_of_all(const IslandCollective& collective,
                                            const Topology& topology) {
  const Step& first = step(collective.steps[0]);
  const std::vector<int>& members = topology.island(collective.island);
  if (!first.is_exchange() || !topology.native(members[0])) return first.pieces;
  std::vector<Piece> pieces;
  using Pairs = std::map<std::pair<int, int>, std::vector<Piece>>;
  Pairs sent, received;
  for (int id : collective.steps) {
    for (const Piece& piece : step(id).pieces) {
      const int rank = rank_of_[id];
      if (!piece.has(rank)) {
        errors_.push_back(describe(id) + ": expected its own pieces; got one from rank " +
                          std::to_string(piece.from) + " to rank " + std::to_string(piece.to));
      }
      if (piece.from == rank) pieces.push_back(piece);
      if (piece.from == rank) sent[{piece.from, piece.to}].push_back(piece);
      if (piece.to == rank) received[{piece.from, piece.to}].push_back(piece);
    }
  }
  for (const Pairs* pairs : {&sent, &received}) {
    for (const auto& [pair, own] : *pairs) {
      if (sent[pair] == received[pair]) continue;
      errors_.push_back(describe(collective.steps[0]) + ": ranks " + std::to_string(pair.first) +
                        " and " + std::to_string(pair.second) +
                        " list different pieces between them; expected the same ones in one order");
      return pieces;
    }
  }
  return pieces;
}

void StepGraph::find_dependents() {
  std::vector<std::pair<int, int>> edges;  // before, after
  int island_step = -1;
  for (int id = 0; id < steps(); ++id) {
    if (id == first_[rank_of_[id]]) island_step = -1;
    for (int before : step(id).after) edges.emplace_back(first_[rank_of_[id]] + before, id);
    if (!step(id).in_island()) continue;
    if (island_step >= 0) edges.emplace_back(island_step, id);
    island_step = id;
  }
  waits_.assign(steps(), 0);
  offsets_.assign(steps() + 1, 0);
  for (const auto& [before, after] : edges) {
    ++waits_[after];
    ++offsets_[before + 1];
  }
  for (int id = 0; id < steps(); ++id) offsets_[id + 1] += offsets_[id];
  dependents_.resize(edges.size());
  std::vector<int> next(offsets_.begin(), offsets_.end() - 1);
  for (const auto& [before, after] : edges) dependents_[next[before]++] = after;
}

}  // namespace hetcomm
