#pragma once

#include <set>
#include <vector>

namespace hetcomm {

// A group's ranks host by host. Control connections join ranks whose places here are 1, 2, 4, ...
// apart. After the loss of one host the ranks of all other hosts are still joined. Immutable.
class Ring {
 public:
  Ring() = default;
  // The ranks of each host in ascending order; the first host has rank 0.
  explicit Ring(const std::vector<std::vector<int>>& hosts);

  std::set<int> neighbours(int rank) const;
  // In the tree of control connections from rank 0, which is its own parent. The parent's place is
  // the rank's place without the lowest bit.
  int parent(int rank) const;
  std::vector<int> children(int rank) const;

 private:
  std::vector<int> ranks_, places_;
};

}  // namespace hetcomm
