#include "plan/algorithms/orders.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

namespace hetcomm {
namespace {

std::vector<int> rotated(const Topology& topology, int island, bool to_end) {
  std::vector<int> order = island_order(topology);
  auto begin = order.begin(), end = order.end();
  const int levels = static_cast<int>(topology.zones().size());
  for (int level = 0; level <= levels; ++level) {
    const auto inside = [&](int other) {
      return level < levels
                 ? topology.zone_of_island(level, other) == topology.zone_of_island(level, island)
                 : other == island;
    };
    const auto first = std::find_if(begin, end, inside);
    const auto last = std::find_if_not(first, end, inside);
    const auto size = last - first;
    std::rotate(begin, to_end ? last : first, end);
    begin = to_end ? end - size : begin;
    end = begin + size;
  }
  return order;
}

}  // namespace

std::vector<int> island_order(const Topology& topology) {
  using Key = std::tuple<std::vector<int>, int64_t, int, int>;
  std::vector<Key> keys;
  for (int island = 0; island < std::ssize(topology.islands()); ++island) {
    std::vector<int> zones;
    for (int level = 0; level < std::ssize(topology.zones()); ++level) {
      zones.push_back(topology.zone_of_island(level, island));
    }
    const int host = topology.host_of(topology.island(island)[0]);
    keys.emplace_back(std::move(zones), -topology.host_bandwidth(host), host, island);
  }
  std::sort(keys.begin(), keys.end());
  std::vector<int> order;
  for (const Key& key : keys) order.push_back(std::get<3>(key));
  return order;
}

std::vector<int> order_from(const Topology& topology, int island) {
  return rotated(topology, island, false);
}

std::vector<int> order_to(const Topology& topology, int island) {
  return rotated(topology, island, true);
}

ZoneWalk::ZoneWalk(const Topology& topology, int root)
    : order(order_from(topology, root)), parent(order.size(), -1) {
  const std::vector<int> islands = std::exchange(order, {root});
  add(topology, islands, 0);
}

// Adds the islands of a zone, whose first one is there already.
void ZoneWalk::add(const Topology& topology, const std::vector<int>& islands, int level) {
  std::vector<std::vector<int>> zones;  // inside
  for (const int island : islands) {
    const bool joins =
        level < std::ssize(topology.zones()) && !zones.empty() &&
        topology.zone_of_island(level, zones.back()[0]) == topology.zone_of_island(level, island);
    if (!joins) zones.emplace_back();
    zones.back().push_back(island);
  }
  for (size_t place = 1; place < zones.size(); ++place) {
    order.push_back(zones[place][0]);
    parent[zones[place][0]] = zones[tree_parent(place)][0];
  }
  for (const std::vector<int>& zone : zones) {
    if (zone.size() > 1) add(topology, zone, level + 1);
  }
}

}  // namespace hetcomm
