#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "health/watched_group.h"

namespace hetcomm {

// Reduces a value of every rank over the tree of control connections, and gives all ranks the
// result. A rank combines the values of its children with its own, and tells its parent. Rank 0 has
// the result, and passes it down. `Part` is a kind of news: parts of one key() belong together, and
// combine() takes another part.
template <class Part>
class TreeReduce {
 public:
  explicit TreeReduce(WatchedGroup& group) : group_(group) {}

  // Takes this rank's part. Each rank adds one part for each key.
  void add(const Part& part) { add(group_.rank, part); }
  // Throws Error(invalid_argument) if the origin is no neighbour in the tree.
  void on_news(int origin, const Part& part) {
    const Ring& ring = group_.control.ring();
    if (ring.parent(origin) == group_.rank && origin != group_.rank) return add(origin, part);
    if (ring.parent(group_.rank) == origin) return pass_down(part);
    throw Error(
        Code::invalid_argument,
        "expected the value of a neighbour in the tree, got one of rank " + std::to_string(origin));
  }
  bool has_results() const { return !results_.empty(); }
  std::vector<Part> take_results() { return std::exchange(results_, {}); }  // since the last time

 private:
  // Of this rank, or of the subtree of a child.
  void add(int origin, const Part& part) {
    const auto [found, first] = tallies_.try_emplace(part.key(), Tally{part, {}});
    Tally& tally = found->second;
    if (!tally.origins.insert(origin).second) {
      throw Error(Code::invalid_argument,
                  "expected one value of rank " + std::to_string(origin) + ", got another one");
    }
    if (!first) tally.reduced.combine(part);
    const Ring& ring = group_.control.ring();
    if (tally.origins.size() <= ring.children(group_.rank).size()) return;
    const Part reduced = tally.reduced;
    tallies_.erase(found);
    group_.rank == 0 ? pass_down(reduced) : group_.tell(ring.parent(group_.rank), reduced);
  }
  void pass_down(const Part& result) {
    for (int child : group_.control.ring().children(group_.rank)) group_.tell(child, result);
    results_.push_back(result);
  }

  struct Tally {
    Part reduced;
    std::set<int> origins;  // this rank, and children
  };
  using Key = decltype(std::declval<Part>().key());

  WatchedGroup& group_;
  std::map<Key, Tally> tallies_;
  std::vector<Part> results_;
};

}  // namespace hetcomm
