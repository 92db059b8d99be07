#include "plan/schedule.h"

namespace hetcomm {

Schedule schedule_of(const std::vector<Step>& steps) {
  const int count = static_cast<int>(steps.size());
  Schedule schedule;
  schedule.waiting.resize(count);
  schedule.followers.resize(count);
  for (int i = 0; i < count; ++i) {
    const Step& step = steps[i];
    schedule.waiting[i] = static_cast<int>(step.after.size());
    for (const int before : step.after) schedule.followers[before].push_back(i);
    if (is_island(step.kind)) schedule.island_steps.push_back(i);
    if (is_message(step.kind)) ++schedule.messages;
  }
  for (int i = count - 1; i >= 0; --i) {
    if (steps[i].after.empty() && !is_island(steps[i].kind)) schedule.ready.push_back(i);
  }
  return schedule;
}

}  // namespace hetcomm
