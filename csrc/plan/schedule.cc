#include "plan/schedule.h"

#include <algorithm>

namespace hetcomm {
namespace {

IslandStep island_step(int index, const Step& step, const std::vector<int>& members) {
  const auto member = [&members](int rank) {
    const auto place = std::lower_bound(members.begin(), members.end(), rank);
    const bool is_member = place != members.end() && *place == rank;
    return is_member ? static_cast<int>(place - members.begin()) : -1;
  };
  IslandStep result{index, {}};
  for (const Piece& piece : step.pieces) {
    result.members.emplace_back(member(piece.from), member(piece.to));
  }
  return result;
}

}  // namespace

Schedule schedule_of(const std::vector<Step>& steps, const std::vector<int>& members) {
  const int count = static_cast<int>(steps.size());
  Schedule schedule;
  schedule.waiting.resize(count);
  schedule.followers.resize(count);
  for (int i = 0; i < count; ++i) {
    const Step& step = steps[i];
    schedule.waiting[i] = static_cast<int>(step.after.size());
    for (const int before : step.after) schedule.followers[before].push_back(i);
    if (step.in_island()) schedule.island_steps.push_back(island_step(i, step, members));
    if (step.is_message()) ++schedule.messages;
  }
  for (int i = count - 1; i >= 0; --i) {
    if (steps[i].after.empty() && !steps[i].in_island()) schedule.ready.push_back(i);
  }
  return schedule;
}

}  // namespace hetcomm
