#include "plan/profile.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <set>
#include <sstream>
#include <tuple>

#include "base/fnv.h"
#include "base/status.h"

namespace hetcomm {
namespace {

constexpr int64_t kLongest = int64_t{1} << 60;  // ns; sums of a few of them do not overflow

std::string in_words(const Profile::Host& host) {
  return std::to_string(host.ranks) + " ranks on " + std::to_string(host.cores) +
         " processors with nics " + host.nics;
}

std::multiset<std::string> split(const std::string& nics) {
  std::multiset<std::string> found;
  std::istringstream words(nics == "none" ? "" : nics);
  for (std::string word; std::getline(words, word, ',');) found.insert(word);
  return found;
}

// Whether `host` is like the measured host, or a part of it. A group may leave out ranks of a host,
// and with them processors and NICs.
bool fits(const Profile::Host& measured, const Profile::Host& host) {
  if (measured.cores == host.cores && measured.nics == host.nics) {
    return measured.ranks >= host.ranks;
  }
  if (measured.ranks <= host.ranks || measured.cores < host.cores) return false;
  const std::multiset<std::string> all = split(measured.nics), some = split(host.nics);
  return std::includes(all.begin(), all.end(), some.begin(), some.end());
}

}  // namespace

void Curve::add(int64_t bytes, int64_t nanoseconds) { points_.emplace_back(bytes, nanoseconds); }

int64_t Curve::at(int64_t bytes) const {
  auto after = std::upper_bound(points_.begin(), points_.end(), std::pair(bytes, INT64_MAX));
  if (after == points_.begin()) return points_.front().second;
  if (after == points_.end()) --after;
  const auto& [from, begin] = *(after - 1);
  const auto& [to, end] = *after;
  const __int128 rise = static_cast<__int128>(end - begin) * (bytes - from) / (to - from);
  return static_cast<int64_t>(std::min<__int128>(begin + rise, kLongest));
}

const Profile::Island* Profile::nearest(const IslandSize& size) const {
  const Island* found = nullptr;
  auto distance = [&](const Island& island) {
    return std::tuple(std::abs(island.size.cores - size.cores),
                      std::abs(island.size.members - size.members),
                      std::abs(island.size.ranks - size.ranks));
  };
  for (const Island& island : islands) {
    if (found == nullptr || distance(island) < distance(*found)) found = &island;
  }
  return found;
}

std::vector<int> Profile::match_hosts(const Topology& topology) const {
  const int count = static_cast<int>(topology.hosts().size());
  const int known = static_cast<int>(hosts.size());
  std::vector<Host> wanted;
  for (int host = 0; host < count; ++host) wanted.push_back(profile_host(topology, host));
  std::vector<int> match(count, -1), taken_by(known, -1);
  auto take = [&](int host, int found) {
    match[host] = found;
    taken_by[found] = host;
    return true;
  };
  // Hosts of one name match first. Another host that finds none may change this.
  for (int host = 0; host < count; ++host) {
    for (int i = 0; match[host] < 0 && i < known; ++i) {
      if (taken_by[i] >= 0 || hosts[i].name != wanted[host].name) continue;
      if (fits(hosts[i], wanted[host])) take(host, i);
    }
  }
  // Augmenting paths of bipartite matching: takes a free measured host, or one whose owner finds
  // another.
  std::function<bool(int, std::vector<bool>&)> find = [&](int host, std::vector<bool>& visited) {
    std::vector<int> fitting;
    for (int i = 0; i < known; ++i) {
      if (visited[i] || !fits(hosts[i], wanted[host])) continue;
      if (taken_by[i] < 0) return take(host, i);
      fitting.push_back(i);
    }
    for (int i : fitting) {
      if (visited[i]) continue;
      visited[i] = true;
      if (find(taken_by[i], visited)) return take(host, i);
    }
    return false;
  };
  for (int host = 0; host < count; ++host) {
    std::vector<bool> visited(known);
    if (match[host] >= 0 || find(host, visited)) continue;
    std::string all;
    for (const Host& each : hosts) all += (all.empty() ? "" : "; ") + in_words(each);
    throw Error(Code::invalid_argument,
                "the profile is of another topology: expected " + std::to_string(hosts.size()) +
                    " hosts or part of them, " + all + "; got " + std::to_string(count) +
                    " hosts, of which " + wanted[host].name + " has " + in_words(wanted[host]) +
                    "; run hetcomm tune on these hosts, or unset HETCOMM_PROFILE");
  }
  return match;
}

std::string Profile::digest() const {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(fnv1a(text())));
  return digits;
}

const std::vector<Collective>& profiled_collectives() {
  static const std::vector<Collective> all = {Collective::all_reduce, Collective::reduce_scatter,
                                              Collective::reduce,     Collective::all_gather,
                                              Collective::broadcast,  Collective::all_to_all,
                                              Collective::gather,     Collective::scatter};
  return all;
}

Profile::Host profile_host(const Topology& topology, int host) {
  const std::vector<int>& ranks = topology.hosts()[host];
  Profile::Host found{topology.rank(ranks[0]).host_name, static_cast<int64_t>(ranks.size()),
                      topology.processors(host), "", 0};
  std::map<std::string, std::string> nics;  // by name: several ranks may list one NIC
  for (int rank : ranks) {
    const RankInfo& info = topology.rank(rank);
    for (const Nic& nic : info.nics) {
      nics[nic.name] = std::string(name(nic.fabric)) + ":" + std::to_string(nic.bandwidth);
    }
  }
  std::multiset<std::string> sorted;
  for (const auto& [_, what] : nics) sorted.insert(what);
  for (const std::string& what : sorted) found.nics += (found.nics.empty() ? "" : ",") + what;
  if (found.nics.empty()) found.nics = "none";
  return found;
}

}  // namespace hetcomm
