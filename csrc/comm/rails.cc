// Plans after the failure of a rail.

#include "bootstrap/group.h"
#include "comm/communicator.h"

namespace hetcomm {

void Communicator::leave_out_lost_rails(std::chrono::nanoseconds bound) {
  const std::vector<RailEnds> lost = group_->health->lost_rails(sequence_, Deadline(bound));
  std::vector<RankInfo> ranks;
  for (int rank = 0; rank < size(); ++rank) ranks.push_back(group_->topology->rank(rank));
  const auto& before = group_->topology->unreachable();
  std::vector<UnreachablePair> unreachable(before.begin(), before.end());
  for (const RailEnds& rail : lost) {
    unreachable.push_back({rail.network, rail.own, rail.other});
  }
  topologies_.push_back(std::make_shared<const Topology>(std::move(ranks), unreachable));
  topology_ = topologies_.back().get();
  group_->planner = group_->make_planner(topologies_.back());
  last_plan_ = nullptr;
  left_out_ = lost.size();
}

}  // namespace hetcomm
