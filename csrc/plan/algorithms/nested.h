#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "plan/algorithms/segments.h"

namespace hetcomm {

// Zones as a tree, whose leaves are islands.
struct ZoneTree {
  int64_t uplink = 0;  // MB/s: of its islands together, or of the zone where this is less
  int island = -1;     // of a leaf
  std::vector<ZoneTree> children;
};
ZoneTree zone_tree(const Topology& topology);

// An exchange of a nested all_reduce, with a party of each child of a zone. All parties send part i
// of a range to party i. It adds them up, and later sends its total to all. In the exchange of two
// halves of the whole cluster both add up the range. Ranges begin at the segment.
struct ZoneExchange {
  struct Party {
    int island;
    bool summed;      // by an exchange before; else it has the sum of its island
    int64_t scratch;  // element of its owner's scratch at which its messages begin
  };
  Range range;
  std::vector<Party> parties;
  std::vector<Range> parts;  // of the parties; none if all add up the range

  int number() const { return static_cast<int>(parties.size()); }
  Range part(int party) const { return parts.empty() ? range : parts[party]; }
};

// The exchanges of a segment of so many elements, those of inner zones first.
class ZoneExchanges {
 public:
  ZoneExchanges(const ZoneTree& tree, int64_t count, Dtype dtype);

  // Elements of scratch of the island's owner.
  int64_t scratch(int island) const;
  int64_t most_scratch() const;
  // Messages of a mean size that would have `count` elements together.
  int64_t messages_per_whole(int64_t count) const;
  // `source`, `target`: the segment. A party has its island's sum in either; the total is for the
  // target, at every owner. `scratch`: by island.
  void combine(PlanBuilder& builder, const std::vector<int>& owners, const Range& source,
               const Range& target, const std::map<int, Range>& scratch) const;

 private:
  struct Sum {  // of a zone
    Range range;
    int island;  // its owner has the sum
    bool summed;
  };
  std::vector<Sum> add(const ZoneTree& zone, const Range& segment, bool outermost);

  static Range part_of(const Range& range, const std::vector<int64_t>& shares, size_t index,
                       int64_t grain);

  std::vector<int64_t> grains_;  // elements, by height
  std::vector<ZoneExchange> exchanges_;
  std::map<int, int64_t> scratch_;  // by island
};

}  // namespace hetcomm
