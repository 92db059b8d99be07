#include "plan/algorithms/routes.h"

#include <algorithm>
#include <tuple>

namespace hetcomm {
namespace {

// A relay's own latency is small beside this.
constexpr double kRelayedMicroseconds = 1000;

}  // namespace

Routes Routes::by_uplink(const Topology& topology, int64_t block_bytes) {
  Routes routes(topology);
  const auto islands = static_cast<int64_t>(topology.islands().size());
  std::vector<int> relays(islands, -1);
  // Blocks that an island sends, and microseconds of a byte over its uplink (MB/s).
  std::vector<double> sent, each;
  double step = 0;  // the longest time of an uplink in either direction
  const std::vector<int64_t> uplinks = island_uplinks(topology);
  for (int64_t island = 0; island < islands; ++island) {
    const auto size = static_cast<double>(topology.islands()[island].size());
    sent.push_back(size * static_cast<double>(islands - 1));
    each.push_back(1 / static_cast<double>(uplinks[island]));
    step = std::max(step, each.back() * std::max(sent.back(), topology.size() - size));
  }
  for (int64_t island = 0; islands > 2 && island < islands; ++island) {
    const auto size = static_cast<double>(topology.islands()[island].size());
    const double more = size * static_cast<double>(islands - 2);
    int64_t best = island;
    const auto after = [&](int64_t relay) { return (sent[relay] + more) * each[relay]; };
    for (int64_t relay = 0; relay < islands; ++relay) {
      if (2 * each[relay] > each[island]) continue;
      if (best == island || after(relay) < after(best)) best = relay;
    }
    const double block = static_cast<double>(block_bytes) * each[island];
    if (best == island || 2 * after(best) > step || block < kRelayedMicroseconds) continue;
    relays[island] = static_cast<int>(best);
    sent[best] += more;
  }
  const bool any = std::any_of(relays.begin(), relays.end(), [](int relay) { return relay >= 0; });
  if (any) routes.relays_ = std::move(relays);
  return routes;
}

Routes Routes::by_zone(const Topology& topology) {
  Routes routes(topology);
  for (int level = 0; level < std::ssize(topology.zones()); ++level) {
    const size_t zones = topology.zones()[level].size();
    routes.members_.emplace_back(zones);
    routes.inner_.emplace_back(level == 0 ? 1 : topology.zones()[level - 1].size());
    for (int zone = 0; zone < static_cast<int>(zones); ++zone) {
      const int host = topology.zones()[level][zone].hosts[0];
      routes.inner_[level][level == 0 ? 0 : topology.zone_of(level - 1, host)].push_back(zone);
    }
  }
  for (int level = 0; level < routes.levels(); ++level) {
    std::vector<size_t>& turns = routes.turns_.emplace_back(topology.size());
    size_t turn = 0;
    for (const Zone& zone : topology.zones()[level]) {
      for (int host : zone.hosts) {
        for (int rank : topology.hosts()[host]) turns[rank] = turn++;
      }
    }
    for (int island = 0; island < routes.islands(); ++island) {
      routes.members_[level][topology.zone_of_island(level, island)].push_back(island);
    }
  }
  return routes;
}

// The island by which a segment enters a zone. Islands take turns at blocks, zone by zone.
int Routes::entry(int level, int zone, const Segment& segment) const {
  const std::vector<int>& members = members_[level][zone];
  return members[(turns_[level][segment.block_of] + segment.part) % members.size()];
}

Routes::Place Routes::place_of(const Segment& segment, int island) const {
  const int own = topology_->island_of(segment.block_of);
  if (island == own) return {-1, 0, -1};
  if (const int relay = relay_of(own); relay >= 0) {
    return island == relay ? Place{own, 1, 0} : Place{relay, 2, 0};
  }
  int parent = own, depth = 1;
  for (int level = 0; level < levels(); ++level) {
    const int zone = zone_of(level, island);
    if (zone == zone_of(level, parent)) continue;
    const int first = entry(level, zone, segment);
    if (first == island) return {parent, depth, level};
    parent = first;
    ++depth;
  }
  return {parent, depth, levels()};
}

std::vector<int> Routes::children(const Segment& segment, int island) const {
  const int own = topology_->island_of(segment.block_of);
  std::vector<int> children;
  if (members_.empty()) {  // one island sends to all others
    const int relay = relay_of(own);
    if (relay >= 0 && island == own) return {relay};
    if (island != (relay >= 0 ? relay : own)) return children;
    for (int other = 0; other < islands(); ++other) {
      if (other != island && other != own) children.push_back(other);
    }
    return children;
  }
  const int level = place_of(segment, island).level;
  if (level == levels()) return children;
  for (int inner = level + 1; inner < levels(); ++inner) {
    const int around = inner == 0 ? 0 : zone_of(inner - 1, island);
    for (int zone : inner_[inner][around]) {
      if (zone != zone_of(inner, island)) children.push_back(entry(inner, zone, segment));
    }
  }
  for (int other : members_.back()[zone_of(levels() - 1, island)]) {
    if (other != island) children.push_back(other);
  }
  return children;
}

std::vector<Routes::Hop> Routes::hops(const PlanBuilder& builder, const Segment& segment) const {
  const int own = topology_->island_of(segment.block_of);
  std::vector<Hop> hops;
  for (int island : builder.islands()) {
    const Place place = place_of(segment, island);
    if (island != own) hops.push_back({place.parent, island, place.depth});
    if (!builder.builds(segment.owners[island])) continue;
    for (int child : children(segment, island)) {
      if (!builder.builds_island(child)) hops.push_back({island, child, place.depth + 1});
    }
  }
  const auto key = [&](const Hop& hop) {  // a sender begins with its neighbour
    return std::tuple(hop.depth, (hop.to - hop.from + islands()) % islands(), hop.from);
  };
  std::sort(hops.begin(), hops.end(), [&](const Hop& a, const Hop& b) { return key(a) < key(b); });
  return hops;
}

bool Routes::passes_on(const Segment& segment, int island) const {
  return topology_->island_of(segment.block_of) != island && !children(segment, island).empty();
}

int64_t Routes::kept_blocks(int island, bool sums) const {
  int64_t blocks = 0;
  for (int other = 0; other < std::ssize(relays_); ++other) {
    if (relays_[other] == island) {
      blocks += islands() * std::ssize(topology_->islands()[other]);
    }
  }
  // An island is the entry of a part of the blocks, and then keeps a sum of each other part.
  return blocks + (sums ? levels() * topology_->size() : 0);
}

}  // namespace hetcomm
