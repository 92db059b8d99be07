#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "health/watched_group.h"

namespace hetcomm {

// The parent of a rank in the tree of control connections: the rank without the lowest bit.
inline int parent_of(int rank) { return rank & (rank - 1); }

inline std::vector<int> children_of(int rank, int size) {
  std::vector<int> children;
  for (int child = rank + 1; child < size && parent_of(child) == rank;) {
    children.push_back(child);
    child = rank + 2 * (child - rank);
  }
  return children;
}

// Adds up a value of every rank, and gives all ranks the total. A rank adds the values of its
// children to its own, and tells its parent. Rank 0 has the total, and passes it down. `Part` is a
// kind of news: parts of one key() belong together, and add() adds another part.
template <class Part>
class TreeSum {
 public:
  explicit TreeSum(WatchedGroup& group)
      : group_(group), children_(children_of(group.rank, group.size)) {}

  // Of this rank, or of the subtree of one child. Each rank adds its own once for each key.
  void add(const Part& part) {
    const auto [found, first] = tallies_.try_emplace(part.key(), Tally{part, 0});
    Tally& tally = found->second;
    if (!first) tally.sum.add(part);
    if (++tally.parts <= children_.size()) return;
    const Part sum = tally.sum;
    tallies_.erase(found);
    group_.rank == 0 ? pass_down(sum) : group_.tell(parent_of(group_.rank), sum);
  }
  // Throws Error(invalid_argument) if the origin is no neighbour in the tree.
  void on_news(int origin, const Part& part) {
    if (parent_of(origin) == group_.rank && origin != group_.rank) return add(part);
    if (parent_of(group_.rank) == origin) return pass_down(part);
    throw Error(
        Code::invalid_argument,
        "expected a sum of a neighbour in the tree, got one of rank " + std::to_string(origin));
  }
  // The totals since the last time.
  std::vector<Part> take_totals() { return std::exchange(totals_, {}); }

 private:
  void pass_down(const Part& total) {
    for (int child : children_) group_.tell(child, total);
    totals_.push_back(total);
  }

  struct Tally {
    Part sum;
    size_t parts;  // this rank, and the subtrees of its children
  };
  using Key = decltype(std::declval<Part>().key());

  WatchedGroup& group_;
  const std::vector<int> children_;
  std::map<Key, Tally> tallies_;
  std::vector<Part> totals_;
};

}  // namespace hetcomm
