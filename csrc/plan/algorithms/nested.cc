#include "plan/algorithms/nested.h"

#include <algorithm>
#include <numeric>

#include "plan/algorithms/algorithms.h"

namespace hetcomm {
namespace {

// In a zone with the most islands a part has so many grains. More grains divide parts more evenly,
// and make more exchanges: parts of zones with unlike sizes differ by a quarter at most.
constexpr int64_t kCuts = 4;

int64_t begin_of(const Range& range) {
  return range.offset / static_cast<int64_t>(size_of(range.dtype));
}

int64_t slot_of(const Range& part) {
  const int64_t line = kCacheLine / static_cast<int64_t>(size_of(part.dtype));
  return (part.count + line - 1) / line * line;
}

ZoneTree zone_tree(const Topology& topology, const std::vector<int64_t>& uplinks, int level,
                   const std::vector<int>& islands) {
  ZoneTree tree;
  if (level == std::ssize(topology.zones())) {
    for (int island : islands) tree.children.push_back({uplinks[island], island, {}});
  } else {
    std::map<int, std::vector<int>> members;  // by zone
    for (int island : islands) {
      members[topology.zone_of_island(level, island)].push_back(island);
    }
    for (const auto& [zone, inside] : members) {
      ZoneTree& child = tree.children.emplace_back(zone_tree(topology, uplinks, level + 1, inside));
      const int64_t own = topology.zones()[level][zone].uplink;
      if (own > 0) child.uplink = std::min(child.uplink, std::max<int64_t>(1, own / 1'000'000));
    }
  }
  for (const ZoneTree& child : tree.children) tree.uplink += child.uplink;
  return tree;
}

// Exchanges on the way from an island to the whole cluster.
int height_of(const ZoneTree& tree) {
  int height = 0;
  for (const ZoneTree& child : tree.children) height = std::max(height, height_of(child));
  return height + (tree.children.size() > 1);
}

void add_widest(const ZoneTree& tree, std::vector<size_t>& widest) {
  for (const ZoneTree& child : tree.children) add_widest(child, widest);
  if (tree.children.size() < 2) return;
  size_t& most = widest[height_of(tree) - 1];
  most = std::max(most, tree.children.size());
}

// The most parties of an exchange, by height.
std::vector<size_t> widest(const ZoneTree& tree) {
  std::vector<size_t> widest(height_of(tree));
  add_widest(tree, widest);
  return widest;
}

}  // namespace

ZoneTree zone_tree(const Topology& topology) {
  std::vector<int> islands(topology.islands().size());
  std::iota(islands.begin(), islands.end(), 0);
  return zone_tree(topology, island_uplinks(topology), 0, islands);
}

ZoneExchanges::ZoneExchanges(const ZoneTree& tree, int64_t count, Dtype dtype) {
  const int64_t line = kCacheLine / static_cast<int64_t>(size_of(dtype));
  int64_t grain = count;
  for (const size_t children : widest(tree)) {
    grain = std::max(line, grain / (kCuts * static_cast<int64_t>(children)) / line * line);
    grains_.push_back(grain);
  }
  add(tree, {Space::output, 0, count, dtype}, true);
}

// Part `index` of an exchange's range, by shares. Inside zones parts begin and end at whole grains,
// so that zones of unlike sizes have few cuts in all.
Range ZoneExchanges::part_of(const Range& range, const std::vector<int64_t>& shares, size_t index,
                             int64_t grain) {
  const int64_t first = begin_of(range);
  const auto cut = [&](size_t at) {
    const Range before = shares_of(range, 0, shares[at], shares.back());
    if (grain == 0 || shares[at] == 0 || shares[at] == shares.back()) return before.count;
    const int64_t whole = (first + before.count + grain / 2) / grain * grain - first;
    return std::clamp<int64_t>(whole, 0, range.count);
  };
  return range.part(cut(index), cut(index + 1) - cut(index));
}

// Returns the sums that the zone has, in the order of their ranges.
std::vector<ZoneExchanges::Sum> ZoneExchanges::add(const ZoneTree& zone, const Range& segment,
                                                   bool outermost) {
  if (zone.island >= 0) return {{segment, zone.island, false}};
  const bool only = zone.children.size() == 1;
  const int height = height_of(zone) - 1;
  std::vector<std::vector<Sum>> sums;  // by child
  std::vector<int64_t> uplinks, cuts = {segment.count};
  for (const ZoneTree& child : zone.children) {
    uplinks.push_back(child.uplink);
    sums.push_back(add(child, segment, outermost && only));
    for (const Sum& sum : sums.back()) cuts.push_back(begin_of(sum.range));
  }
  if (only) return sums[0];
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  const std::vector<int64_t> shares = shares_by_uplink(uplinks);
  std::vector<size_t> next(sums.size());  // sum of each child
  std::vector<Sum> totals;
  for (size_t cut = 0; cut + 1 < cuts.size(); ++cut) {
    ZoneExchange exchange{segment.part(cuts[cut], cuts[cut + 1] - cuts[cut]), {}, {}};
    const bool direct = outermost && sums.size() == 2;
    for (size_t child = 0; child < sums.size(); ++child) {
      const std::vector<Sum>& own = sums[child];
      while (next[child] + 1 < own.size() && begin_of(own[next[child] + 1].range) <= cuts[cut]) {
        ++next[child];
      }
      const Sum& sum = own[next[child]];
      int64_t& scratch = scratch_[sum.island];
      exchange.parties.push_back({sum.island, sum.summed, scratch});
      const int64_t grain = outermost ? 0 : grains_[height];
      const Range part = direct ? exchange.range : part_of(exchange.range, shares, child, grain);
      scratch += (std::ssize(sums) - 1) * slot_of(part);
      if (!direct) exchange.parts.push_back(part);
      if (part.count > 0) totals.push_back({part, sum.island, true});
    }
    exchanges_.push_back(std::move(exchange));
  }
  return totals;
}

int64_t ZoneExchanges::scratch(int island) const {
  const auto known = scratch_.find(island);
  return known == scratch_.end() ? 0 : known->second;
}

int64_t ZoneExchanges::most_scratch() const {
  int64_t most = 0;
  for (const auto& [island, elements] : scratch_) most = std::max(most, elements);
  return most;
}

int64_t ZoneExchanges::messages_per_whole(int64_t count) const {
  int64_t messages = 0, elements = 0;
  for (const ZoneExchange& exchange : exchanges_) {
    for (int party = 0; party < exchange.number(); ++party) {
      messages += exchange.number() - 1;
      elements += (exchange.number() - 1) * exchange.part(party).count;
    }
  }
  return elements == 0 ? 1 : std::max<int64_t>(1, count * messages / elements);
}

void ZoneExchanges::combine(PlanBuilder& builder, const std::vector<int>& owners,
                            const Range& source, const Range& target,
                            const std::map<int, Range>& scratch) const {
  const Topology& topology = builder.topology();
  const auto at = [](const Range& memory, const Range& range) {
    return in(memory.space, range, memory.offset);
  };
  const auto owner = [&](const ZoneExchange& e, int party) {
    return owners[e.parties[party].island];
  };
  // The sum of a party before the exchange.
  const auto sum_of = [&](const ZoneExchange& e, int party, const Range& range) {
    const auto& [island, summed, begin] = e.parties[party];
    return at(!summed && topology.island(island).size() == 1 ? source : target, range);
  };
  const auto received = [&](const ZoneExchange& e, int from, int to) {
    const Range part = e.part(to);
    const auto memory = scratch.find(e.parties[to].island);
    if (memory == scratch.end()) return in(Space::scratch, part);  // of a rank without a plan here
    const int lane = (to - from + e.number()) % e.number() - 1;
    return memory->second.part(e.parties[to].scratch + lane * slot_of(part), part.count);
  };
  std::vector<std::pair<const ZoneExchange*, Shifts>> built;
  for (const ZoneExchange& exchange : exchanges_) {
    std::vector<int> parties;
    for (int party = 0; party < exchange.number(); ++party) {
      if (builder.builds(owner(exchange, party))) parties.push_back(party);
    }
    if (!parties.empty()) built.emplace_back(&exchange, Shifts(exchange.number(), parties));
  }
  for (const auto& [exchange, shifts] : built) {
    const ZoneExchange& e = *exchange;
    for (int shift = 1; shift < e.number(); ++shift) {
      for (int from : shifts.senders(shift)) {
        const int to = shifts.receiver(from, shift);
        builder.transfer(owner(e, from), sum_of(e, from, e.part(to)), owner(e, to),
                         received(e, from, to));
      }
    }
    for (int party : shifts.positions()) {
      std::vector<Range> sources;
      for (int from = 0; from < e.number(); ++from) {
        sources.push_back(from == party ? sum_of(e, party, e.part(party))
                                        : received(e, from, party));
      }
      builder.reduce(owner(e, party), sources, at(target, e.part(party)));
    }
  }
  std::reverse(built.begin(), built.end());
  for (const auto& [exchange, shifts] : built) {
    const ZoneExchange& e = *exchange;
    for (int shift = 1; shift < e.number() && !e.parts.empty(); ++shift) {
      for (int from : shifts.senders(shift)) {
        const Range total = at(target, e.part(from));
        builder.transfer(owner(e, from), total, owner(e, shifts.receiver(from, shift)), total);
      }
    }
  }
}

Hops exchange_hops(const Topology& topology) {
  const ZoneTree tree = zone_tree(topology);
  const ZoneTree* outermost = &tree;
  while (outermost->children.size() == 1) outermost = &outermost->children[0];
  const int hops = 2 * height_of(tree) - (outermost->children.size() == 2);
  return {hops, hops};
}

}  // namespace hetcomm
