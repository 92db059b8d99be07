#include "topology/topology.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "base/fnv.h"
#include "base/status.h"
#include "topology/networks.h"
#include "topology/rails.h"
#include "topology/zones.h"

namespace hetcomm {
namespace {

// A petabyte per second, beyond any NIC. Sums over the ranks of a job stay far below an overflow.
constexpr int64_t highest_bandwidth = 1'000'000'000'000'000;

void validate(const std::vector<RankInfo>& ranks) {
  if (ranks.empty()) {
    throw Error(Code::invalid_argument, "expected the facts of at least one rank, got none");
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankInfo& info = ranks[rank];
    auto expect = [rank](bool condition, const std::string& expected, const std::string& got) {
      if (condition) return;
      throw Error(Code::invalid_argument, "facts of rank " + std::to_string(rank) + ": expected " +
                                              expected + ", got " + got);
    };
    expect(!info.host.empty(), "the identity of its host", "an empty text");
    expect(!info.vendor.empty(), "a vendor such as cpu, nvidia or amd", "an empty text");
    expect(info.memory <= Memory::device, "a known kind of memory",
           "number " + std::to_string(static_cast<int>(info.memory)));
    for (Fabric fabric : info.direct) {
      expect(info.memory == Memory::device &&
                 (fabric == Fabric::shm || fabric == Fabric::infiniband || fabric == Fabric::roce),
             "only memory of a device to be sent directly, and over shm, infiniband or roce",
             std::string(name(info.memory)) + " memory over " + name(fabric));
    }
    expect(info.direct_bytes >= 0, "a number of bytes of direct messages",
           std::to_string(info.direct_bytes));
    expect(info.cores >= 1, "at least one core", std::to_string(info.cores));
    for (const Nic& nic : info.nics) {
      expect(nic.fabric <= Fabric::ethernet, "a known fabric for NIC " + nic.name,
             "number " + std::to_string(static_cast<int>(nic.fabric)));
      expect(nic.bandwidth >= 0 && nic.bandwidth <= highest_bandwidth,
             "a bandwidth from 0 to " + std::to_string(highest_bandwidth) +
                 " bytes per second for NIC " + nic.name,
             std::to_string(nic.bandwidth));
    }
  }
}

// Ranks may be bound to processors of their own. A rank without a list may run on any processor.
int count_processors(const std::vector<RankInfo>& ranks, const std::vector<int>& members) {
  std::set<int> listed;
  int most = 0;
  for (int rank : members) {
    listed.insert(ranks[rank].processors.begin(), ranks[rank].processors.end());
    most = std::max(most, ranks[rank].cores);
  }
  return std::max(most, static_cast<int>(listed.size()));
}

// A native library refuses to work with another version of itself, but reports that late. A rank
// without a library gets its error when the engine is opened.
void expect_one_library(const std::vector<RankInfo>& ranks, const std::vector<int>& members) {
  auto version = [&](int rank) {  // without the path
    return ranks[rank].ccl.substr(0, ranks[rank].ccl.find(" ("));
  };
  for (int member : members) {
    if (version(member).empty() || version(members[0]).empty()) continue;
    if (version(member) == version(members[0])) continue;
    throw Error(Status(Code::vendor,
                       "ranks " + std::to_string(members[0]) + " and " + std::to_string(member) +
                           " are on one island: expected one native library, got " +
                           version(members[0]) + " on " + ranks[members[0]].host_name + " and " +
                           version(member) + " on " + ranks[member].host_name +
                           "; install the same version on both, or give them different "
                           "HETCOMM_ISLAND labels",
                       members[0], member));
  }
}

// One label asks for one island. Ranks of different vendors cannot form one.
void expect_one_vendor(const std::vector<RankInfo>& ranks) {
  std::map<std::string, int> first;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    if (ranks[rank].island.empty()) continue;
    const int other = first.emplace(ranks[rank].island, rank).first->second;
    if (ranks[rank].vendor == ranks[other].vendor) continue;
    auto vendor_of = [&](int each) {
      return ranks[each].vendor + " on rank " + std::to_string(each) + " (" +
             ranks[each].host_name + ")";
    };
    throw Error(Status(Code::invalid_argument,
                       "HETCOMM_ISLAND=" + ranks[rank].island +
                           ": expected ranks of one vendor, got " + vendor_of(other) + " and " +
                           vendor_of(rank) +
                           "; give the ranks of each vendor a label of their own, or correct "
                           "HETCOMM_VENDOR",
                       other, rank));
  }
}

uint64_t hash(const std::vector<RankInfo>& ranks, const std::set<UnreachablePair>& unreachable) {
  uint64_t value = kFnvBasis;
  auto add = [&value](std::string text) {
    text += '\0';  // separates the ranks: no text holds this character
    value = fnv1a(text, value);
  };
  for (const RankInfo& info : ranks) add(serialize(info));
  for (const UnreachablePair& one : unreachable)
    add(one.network + ' ' + one.address + ' ' + one.other);
  return value;
}

}  // namespace

Topology::Topology(std::vector<RankInfo> ranks, const std::vector<UnreachablePair>& unreachable)
    : ranks_(std::move(ranks)) {
  validate(ranks_);
  expect_one_vendor(ranks_);
  ambiguous_ = ambiguous_networks(ranks_);
  islands_ = find_islands(ranks_);
  island_of_.resize(ranks_.size());
  index_in_island_.resize(ranks_.size());
  for (const auto& members : islands_) {
    for (size_t i = 0; i < members.size(); ++i) {
      island_of_[members[i]] = static_cast<int>(networks_.size());
      index_in_island_[members[i]] = static_cast<int>(i);
    }
    expect_one_library(ranks_, members);
    networks_.push_back(choose_network(ranks_, members, ambiguous_));
  }
  std::map<std::string, int> host_indices;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    auto [entry, is_new] = host_indices.emplace(ranks_[rank].host, hosts_.size());
    if (is_new) hosts_.emplace_back();
    hosts_[entry->second].push_back(static_cast<int>(rank));
    host_of_.push_back(entry->second);
  }
  zones_ = find_zones(ranks_, hosts_);
  for (const std::vector<Zone>& zones : zones_) {
    zone_of_.emplace_back(hosts_.size());
    for (size_t zone = 0; zone < zones.size(); ++zone) {
      for (int host : zones[zone].hosts) zone_of_.back()[host] = static_cast<int>(zone);
    }
  }
  for (const UnreachablePair& one : unreachable) {
    unreachable_.insert(one);
    if (!one.other.empty()) unreachable_.insert({one.network, one.other, one.address});
  }
  for (const RankInfo& info : ranks_) {
    rail_candidates_.push_back(rail_candidates(info, ambiguous_, unreachable_));
  }
  count_bridge_nics();
  for (int rank = 0; rank < size(); ++rank) {
    direct_from_.push_back(0);
    if (ranks_[rank].memory == Memory::host) continue;  // never staged
    for (const auto& members : islands_) {
      if (island_of_[members[0]] == island_of_[rank]) continue;
      int checked = -1;  // on another host, for the members after it there
      for (int member : members) {
        const bool near = same_host(rank, member);
        if (!near && checked >= 0 && same_host(checked, member)) continue;
        if (!near) checked = member;
        direct_from_[rank] = std::max(direct_from_[rank], direct_from(rank, member));
      }
    }
  }
  count_crowds();
  fingerprint_ = hash(ranks_, unreachable_);
}

void Topology::count_crowds() {
  std::map<std::string, int> known;          // machines
  std::vector<std::vector<int>> members_of;  // machines
  for (const std::vector<int>& members : hosts_) {
    processors_.push_back(count_processors(ranks_, members));
    const RankInfo& first = ranks_[members[0]];
    const std::string& machine = first.machine.empty() ? first.host : first.machine;
    const int crowd = known.emplace(machine, known.size()).first->second;
    crowd_of_.push_back(crowd);
    if (crowd == std::ssize(members_of)) members_of.emplace_back();
    members_of[crowd].insert(members_of[crowd].end(), members.begin(), members.end());
  }
  for (const std::vector<int>& members : members_of) {
    crowds_.push_back({static_cast<int>(members.size()), count_processors(ranks_, members)});
  }
}

void Topology::count_bridge_nics() {
  const std::vector<int> first = find_bridge_nics(ranks_, island_of_);
  // Ranks with equal candidates have the same rails, so one rank of each key is enough.
  std::map<std::string, std::vector<int>> alike;
  for (int rank = 0; rank < size(); ++rank) alike[rail_candidates_[rank].key].push_back(rank);
  for (const auto& members : hosts_) {
    std::map<std::string, int64_t> counted;                 // by name
    std::map<std::pair<std::string, int>, bool> has_rails;  // by candidates and island
    for (int member : members) {
      const std::vector<Nic>& nics = ranks_[member].nics;
      const std::pair kind(rail_candidates_[member].key, island_of_[member]);
      const auto [known, is_new] = has_rails.emplace(kind, false);
      for (const auto& [key, others] : alike) {
        if (!is_new || rail_candidates_[member].nics.size() < 2) break;
        const auto other = std::find_if(others.begin(), others.end(), [&](int rank) {
          return !same_host(rank, member) && island_of_[rank] != island_of_[member];
        });
        if (other == others.end()) continue;
        for (const Rail& rail : rails(member, *other)) {
          counted[nics[rail.own].name] = nics[rail.own].bandwidth;
          known->second = true;
        }
      }
      int nic = first[member];
      if (known->second || nic < 0) continue;
      for (int other = 0; nics[nic].fabric == Fabric::ethernet && other < size(); ++other) {
        if (island_of_[other] == island_of_[member]) continue;
        if (fabric_between(member, other) != Fabric::ethernet) continue;
        if (const int own = ip_path(member, other).own; own >= 0) nic = own;
        break;
      }
      counted[nics[nic].name] = nics[nic].bandwidth;
    }
    int64_t bandwidth = 0;
    for (const auto& [name, own] : counted) bandwidth += own;
    host_bandwidth_.push_back(bandwidth);
  }
}

std::vector<Rail> Topology::rails(int a, int b) const {
  if (fabric_between(a, b) != Fabric::ethernet) return {};
  return find_rails(ranks_[a], rail_candidates_[a], ranks_[b], rail_candidates_[b], unreachable_);
}

IpPath Topology::ip_path(int a, int b) const {
  return find_ip_path(ranks_[a], ranks_[b], ambiguous_, unreachable_);
}

int64_t Topology::uplink(int rank) const {
  int host = host_of_[rank];
  return host_bandwidth_[host] / static_cast<int64_t>(hosts_[host].size());
}

bool Topology::staged(int rank, int peer) const {
  const RankInfo &own = ranks_[rank], &other = ranks_[peer];
  if (own.memory == Memory::host) return false;
  if (own.direct.empty()) return true;
  const Fabric fabric = fabric_between(rank, peer);
  if (!own.direct.contains(fabric)) return true;
  // Inside a host one end opens the memory of the other.
  return fabric == Fabric::shm && (other.vendor != own.vendor || !other.direct.contains(fabric));
}

int64_t Topology::direct_from(int rank, int peer) const {
  if (staged(rank, peer)) return std::numeric_limits<int64_t>::max();
  const RankInfo &own = ranks_[rank], &other = ranks_[peer];
  if (own.memory == Memory::host || !same_host(rank, peer)) return 0;
  return std::max(own.direct_bytes, other.direct_bytes);
}

bool Topology::staged(int rank, int peer, int64_t bytes) const {
  return bytes < direct_from(rank, peer);
}

int Topology::level_between(int host, int other) const {
  int level = 0;
  while (level < std::ssize(zones_) && zone_of_[level][host] == zone_of_[level][other]) ++level;
  return level;
}

Topology Topology::without_speeds() const {
  Topology alike = *this;
  for (std::vector<Zone>& zones : alike.zones_) {
    for (Zone& zone : zones) {
      zone.uplink = 0;
      for (int host : zone.hosts) {
        for (int rank : hosts_[host]) alike.ranks_[rank].zone = zone.name;
      }
    }
  }
  for (RankInfo& info : alike.ranks_) {
    info.cores = size();
    info.processors.clear();
  }
  std::fill(alike.processors_.begin(), alike.processors_.end(), size());
  for (RankInfo& info : alike.ranks_) info.machine.clear();
  alike.crowds_.clear();
  for (size_t host = 0; host < hosts_.size(); ++host) {
    alike.crowd_of_[host] = static_cast<int>(host);
    alike.crowds_.push_back({static_cast<int>(hosts_[host].size()), size()});
  }
  std::fill(alike.host_bandwidth_.begin(), alike.host_bandwidth_.end(), 0);
  return alike;
}

Fabric Topology::fabric_between(int a, int b) const {
  if (same_host(a, b)) return Fabric::shm;
  for (Fabric fabric : {Fabric::infiniband, Fabric::roce}) {
    if (share_network(ranks_[a], ranks_[b], fabric)) return fabric;
  }
  return Fabric::ethernet;
}

}  // namespace hetcomm
