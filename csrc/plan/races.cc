#include "plan/races.h"

#include <algorithm>
#include <tuple>

namespace hetcomm {
namespace {

// The steps that complete before a step starts: one bit for each earlier step.
class Ancestors {
 public:
  explicit Ancestors(const Plan& plan)
      : words_((plan.steps.size() + 63) / 64), bits_(words_ * plan.steps.size(), 0) {
    int island_step = -1;
    for (int step = 0; step < static_cast<int>(plan.steps.size()); ++step) {
      for (int before : plan.steps[step].after) add(step, before);
      if (!plan.steps[step].in_island()) continue;
      if (island_step >= 0) add(step, island_step);
      island_step = step;
    }
  }

  bool ordered(int before, int step) const {
    return bits_[step * words_ + before / 64] >> (before % 64) & 1;
  }

 private:
  void add(size_t step, size_t before) {
    for (size_t i = 0; i <= before / 64; ++i) {
      bits_[step * words_ + i] |= bits_[before * words_ + i];
    }
    bits_[step * words_ + before / 64] |= uint64_t{1} << (before % 64);
  }

  size_t words_;
  std::vector<uint64_t> bits_;
};

bool conflict(const Access& a, const Access& b) {
  if (!a.write && !b.write) return false;
  if (a.step != b.step) return true;
  const bool in_place =
      a.part == b.part && a.write != b.write && a.begin == b.begin && a.end == b.end;
  return !in_place;
}

}  // namespace

std::vector<std::pair<Access, Access>> races(const Plan& plan, std::vector<Access> accesses,
                                             size_t most) {
  std::sort(accesses.begin(), accesses.end(), [](const Access& a, const Access& b) {
    return std::tie(a.buffer, a.begin, a.step, a.part) <
           std::tie(b.buffer, b.begin, b.step, b.part);
  });
  const Ancestors ancestors(plan);
  std::vector<std::pair<Access, Access>> found;
  std::vector<Access> open;  // accesses that end after the current one begins
  for (const Access& access : accesses) {
    std::erase_if(open, [&](const Access& each) {
      return each.buffer != access.buffer || each.end <= access.begin;
    });
    for (const Access& other : open) {
      if (!conflict(access, other)) continue;
      const auto& [first, second] = std::minmax(
          access, other, [](const Access& a, const Access& b) { return a.step < b.step; });
      if (first.step != second.step && ancestors.ordered(first.step, second.step)) continue;
      if (found.size() == most) return found;
      found.emplace_back(first, second);
    }
    open.push_back(access);
  }
  return found;
}

}  // namespace hetcomm
