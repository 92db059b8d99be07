#include "topology/networks.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "topology/ip.h"
#include "topology/rails.h"

namespace hetcomm {
namespace {

using Networks = std::set<std::string>;

// The name of a NIC's network. All RoCE links with room for two hosts are one routed network.
std::string network_of(const Nic& nic) {
  return nic.fabric == Fabric::roce && is_point_to_point(nic.subnet) ? "routed" : nic.subnet;
}

Networks networks_of(const RankInfo& info, Fabric fabric) {
  Networks found;
  for (const Nic& nic : info.nics) {
    if (nic.fabric == fabric) found.insert(network_of(nic));
  }
  return found;
}

// The IP networks of all its interfaces, of RoCE ports too.
Networks ip_networks_of(const RankInfo& info) {
  Networks found;
  for (const Nic& nic : info.nics) {
    if (nic.fabric != Fabric::infiniband && !nic.address.empty()) found.insert(nic.subnet);
  }
  return found;
}

Networks common(const Networks& a, const Networks& b) {
  Networks both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::inserter(both, both.end()));
  return both;
}

// The networks that all hosts have. A host has the networks of all its ranks, because its ranks may
// have different NICs.
template <typename NetworksOf>
Networks shared_by_hosts(const std::vector<RankInfo>& ranks, const std::vector<int>& members,
                         NetworksOf networks_of) {
  std::map<std::string, Networks> by_host;
  for (int member : members) {
    by_host[ranks[member].host].merge(networks_of(ranks[member]));
  }
  Networks shared = by_host.begin()->second;
  for (const auto& [host, networks] : by_host) shared = common(shared, networks);
  return shared;
}

Networks shared_by_hosts(const std::vector<RankInfo>& ranks, const std::vector<int>& members,
                         Fabric fabric) {
  return shared_by_hosts(ranks, members,
                         [&](const RankInfo& info) { return networks_of(info, fabric); });
}

bool has(const RankInfo& info, Fabric fabric) { return !networks_of(info, fabric).empty(); }

Fabric best_fabric(const std::vector<RankInfo>& ranks, const std::vector<int>& members) {
  for (Fabric fabric : {Fabric::infiniband, Fabric::roce}) {
    for (int member : members) {
      if (has(ranks[member], fabric)) return fabric;
    }
  }
  return Fabric::ethernet;
}

std::string join(const Networks& networks) {
  std::string text;
  for (const std::string& network : networks) {
    text += (text.empty() ? "" : ", ") + (network.empty() ? "unknown" : network);
  }
  return text;
}

// Why the members cannot all use the fabric: which rank has no NIC of it, or another network.
std::string why_not(const std::vector<RankInfo>& ranks, const std::vector<int>& members,
                    Fabric fabric) {
  auto name_of = [&](int member) {
    return "rank " + std::to_string(member) + " on " + ranks[member].host_name;
  };
  for (int member : members) {
    if (has(ranks[member], fabric)) continue;
    std::string text = name_of(member) + " has none";
    for (const std::string& warning : ranks[member].warnings) text += "; " + warning;
    return text;
  }
  for (int member : members) {
    const Networks mine = networks_of(ranks[member], fabric);
    const Networks first = networks_of(ranks[members[0]], fabric);
    if (!common(mine, first).empty()) continue;
    return name_of(members[0]) + " is on " + join(first) + ", " + name_of(member) + " on " +
           join(mine);
  }
  return "its members are on different networks";
}

// The fastest of the member's ports on the networks; of all its ports if none is on the networks.
IslandNetwork::Member rdma_member(const RankInfo& info, Fabric fabric, const Networks& networks) {
  std::vector<Nic> ports;
  for (bool on_them : {true, false}) {
    for (const Nic& nic : info.nics) {
      if (nic.fabric != fabric || (on_them && !networks.contains(network_of(nic)))) continue;
      if (!ports.empty() && nic.bandwidth < ports[0].bandwidth) continue;
      if (!ports.empty() && nic.bandwidth > ports[0].bandwidth) ports.clear();
      ports.push_back(nic);
    }
    if (!ports.empty()) break;
  }
  IslandNetwork::Member member;
  for (const Nic& port : ports) member.devices.push_back(port.name);
  const bool alike = std::all_of(ports.begin(), ports.end(),
                                 [&](const Nic& port) { return port.gid == ports[0].gid; });
  if (!ports.empty() && alike) member.gid = ports[0].gid;
  return member;
}

// Sets the interface by which the other members reach each member. Returns the IP network of these
// interfaces, empty if the members share none.
std::string choose_interfaces(const std::vector<RankInfo>& ranks, const std::vector<int>& members,
                              const Networks& ambiguous, IslandNetwork& network) {
  Networks shared = shared_by_hosts(ranks, members, ip_networks_of);
  std::erase_if(shared, [&](const std::string& each) { return ambiguous.contains(each); });
  std::string chosen;
  for (int member : members) {
    for (int index : ip_nics(ranks[member])) {
      const Nic& nic = ranks[member].nics[index];
      if (chosen.empty() && shared.contains(nic.subnet)) chosen = nic.subnet;
    }
  }
  for (size_t i = 0; i < members.size(); ++i) {
    const RankInfo& info = ranks[members[i]];
    const std::vector<int> nics = ip_nics(info);
    auto found = std::find_if(nics.begin(), nics.end(), [&](int index) {
      const Nic& nic = info.nics[index];
      return !chosen.empty() && nic.fabric != Fabric::infiniband && nic.subnet == chosen;
    });
    if (found == nics.end()) found = nics.begin();
    if (found != nics.end()) network.members[i].interface = info.nics[*found].interface;
  }
  return chosen;
}

int count_hosts(const std::vector<RankInfo>& ranks, const std::vector<int>& members) {
  std::set<std::string> hosts;
  for (int member : members) hosts.insert(ranks[member].host);
  return static_cast<int>(hosts.size());
}

}  // namespace

std::vector<std::vector<int>> find_islands(const std::vector<RankInfo>& ranks) {
  // Ranks that are on one island whatever their networks are, in order of first rank.
  using Key = std::tuple<std::string, std::string, std::string, bool>;
  std::vector<std::vector<int>> units;
  std::map<Key, size_t> unit_of;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankInfo& info = ranks[rank];
    const bool is_native = info.memory != Memory::host;
    const bool is_anywhere = is_native && !info.island.empty();
    Key key{info.vendor, is_anywhere ? "" : info.host, info.island, is_native};
    auto [entry, is_new] = unit_of.emplace(key, units.size());
    if (is_new) units.emplace_back();
    units[entry->second].push_back(static_cast<int>(rank));
  }
  struct Growing {
    bool may_grow;
    std::string vendor;
    Fabric fabric;
    Networks shared;
    std::vector<int> members;
  };
  std::vector<Growing> islands;
  for (const std::vector<int>& unit : units) {
    const RankInfo& info = ranks[unit[0]];
    const Fabric fabric = best_fabric(ranks, unit);
    Growing alone{info.memory != Memory::host && info.island.empty(), info.vendor, fabric,
                  shared_by_hosts(ranks, unit, fabric), unit};
    auto joined = std::find_if(islands.begin(), islands.end(), [&](const Growing& island) {
      // IP is routed, so plain Ethernet needs no network in common.
      return island.may_grow && alone.may_grow && island.vendor == alone.vendor &&
             island.fabric == fabric &&
             (fabric == Fabric::ethernet || !common(island.shared, alone.shared).empty());
    });
    if (joined == islands.end()) {
      islands.push_back(alone);
    } else {
      joined->shared = common(joined->shared, alone.shared);
      joined->members.insert(joined->members.end(), unit.begin(), unit.end());
    }
  }
  std::vector<std::vector<int>> found;
  for (Growing& island : islands) {
    std::sort(island.members.begin(), island.members.end());
    found.push_back(std::move(island.members));
  }
  return found;
}

IslandNetwork choose_network(const std::vector<RankInfo>& ranks, const std::vector<int>& members,
                             const Networks& ambiguous) {
  IslandNetwork network;
  network.members.resize(members.size());
  const RankInfo& first = ranks[members[0]];
  if (count_hosts(ranks, members) == 1) {
    const bool is_native = first.memory != Memory::host;
    network.fabric = is_native ? Fabric::pcie : Fabric::shm;
    network.why = is_native ? "one host: the native library finds the way between its devices"
                            : "one host: its members share memory";
    choose_interfaces(ranks, members, ambiguous, network);
    return network;
  }
  const std::string ip_network = choose_interfaces(ranks, members, ambiguous, network);
  std::string& passed_over = network.passed_over;
  for (Fabric fabric : {Fabric::infiniband, Fabric::roce}) {
    const Networks shared = shared_by_hosts(ranks, members, fabric);
    const bool all_have = std::all_of(members.begin(), members.end(),
                                      [&](int member) { return has(ranks[member], fabric); });
    // RoCE v2 crosses routers. The user's label of an island says that routers join its networks.
    const bool is_routed = fabric == Fabric::roce && !first.island.empty() && shared.empty();
    if (!all_have || (shared.empty() && !is_routed)) {
      const bool some_have = std::any_of(members.begin(), members.end(),
                                         [&](int member) { return has(ranks[member], fabric); });
      if (some_have) {
        passed_over += (passed_over.empty() ? "not " : "; not ") + std::string(name(fabric)) +
                       ": " + why_not(ranks, members, fabric);
      }
      continue;
    }
    network.fabric = fabric;
    bool gids_differ = false;
    for (size_t i = 0; i < members.size(); ++i) {
      const std::string interface = network.members[i].interface;
      network.members[i] = rdma_member(ranks[members[i]], fabric, shared);
      network.members[i].interface = interface;
      gids_differ = gids_differ || network.members[i].gid < 0;
    }
    const std::string across = " of its " + std::to_string(count_hosts(ranks, members)) + " hosts";
    if (fabric == Fabric::infiniband) {
      network.why = "all" + across + " are on InfiniBand subnet " + join(shared);
    } else {
      network.why = is_routed
                        ? "all" + across + " have RoCE v2, which HETCOMM_ISLAND says is routed"
                        : "all" + across + " have RoCE v2 on " + join(shared);
      if (gids_differ) network.why += "; GID indices differ by port, the library chooses them";
    }
    if (!passed_over.empty()) network.why += "; " + passed_over;
    return network;
  }
  network.fabric = Fabric::ethernet;
  for (auto& member : network.members) {
    if (!member.interface.empty()) member.devices = {member.interface};
  }
  network.why = ip_network.empty() ? "sockets between IP networks, taken to be routed"
                                   : "sockets on IP network " + ip_network;
  network.why += passed_over.empty() ? "; no RDMA" : "; " + passed_over;
  return network;
}

bool share_network(const RankInfo& a, const RankInfo& b, Fabric fabric) {
  for (const Nic& mine : a.nics) {
    if (mine.fabric != fabric) continue;
    for (const Nic& other : b.nics) {
      if (other.fabric != fabric) continue;
      if (mine.subnet == other.subnet || network_of(mine) == network_of(other)) return true;
    }
  }
  return false;
}

std::vector<int> find_bridge_nics(const std::vector<RankInfo>& ranks,
                                  const std::vector<int>& island_of) {
  // Ranks with the same RDMA networks reach the same ranks, so one rank of each group is enough.
  struct Alike {
    size_t first;
    std::set<int> islands;
    bool needs_ip = false;
  };
  std::map<std::set<std::pair<Fabric, std::string>>, Alike> groups;
  std::vector<Alike*> group_of;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    std::set<std::pair<Fabric, std::string>> networks;
    for (const Nic& nic : ranks[rank].nics) {
      if (nic.fabric != Fabric::ethernet) networks.emplace(nic.fabric, network_of(nic));
    }
    auto entry = groups.emplace(networks, Alike{rank, {}}).first;
    entry->second.islands.insert(island_of[rank]);
    group_of.push_back(&entry->second);
  }
  for (auto& [networks, mine] : groups) {
    for (const auto& [others, other] : groups) {
      const bool one_island = mine.islands.size() == 1 && mine.islands == other.islands;
      const RankInfo &a = ranks[mine.first], &b = ranks[other.first];
      if (&mine == &other || one_island || a.host == b.host) continue;
      mine.needs_ip = mine.needs_ip || (!share_network(a, b, Fabric::infiniband) &&
                                        !share_network(a, b, Fabric::roce));
    }
  }
  std::vector<int> found;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::vector<Nic>& nics = ranks[rank].nics;
    auto nic = nics.begin();
    if (group_of[rank]->needs_ip) {
      nic = std::find_if(nics.begin(), nics.end(),
                         [](const Nic& nic) { return nic.fabric == Fabric::ethernet; });
      if (nic == nics.end()) nic = nics.begin();
    }
    found.push_back(nic == nics.end() ? -1 : static_cast<int>(nic - nics.begin()));
  }
  return found;
}

std::string contact_address(const RankInfo& info) {
  const std::vector<int> nics = ip_nics(info);
  return nics.empty() ? "127.0.0.1" : info.nics[nics[0]].address;
}

}  // namespace hetcomm
