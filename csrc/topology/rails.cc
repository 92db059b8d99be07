#include "topology/rails.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace hetcomm {
namespace {

// A NIC below one part in so many of the fastest rate is no rail. It would rather delay messages
// than help, or it is made for other traffic.
constexpr int64_t kLeastShare = 8;

bool may_carry_ip(const Nic& nic) { return !nic.interface.empty() && !nic.address.empty(); }

bool may_be_rail(const Nic& nic) {
  // The share of the bytes follows from the rate.
  return nic.fabric == Fabric::ethernet && nic.bandwidth_known && nic.bandwidth > 0 &&
         may_carry_ip(nic) && !nic.subnet.empty();
}

int64_t fastest(const RankInfo& info) {
  int64_t found = 0;
  for (const Nic& nic : info.nics) {
    if (nic.fabric == Fabric::ethernet) found = std::max(found, nic.bandwidth);
  }
  return found;
}

// Failed to many peers.
bool is_given_up(const std::set<UnreachablePair>& unreachable, const Nic& nic) {
  return unreachable.contains({nic.subnet, nic.address, ""});
}

bool has_failed(const std::set<UnreachablePair>& unreachable, const Nic& a, const Nic& b) {
  return unreachable.contains({a.subnet, a.address, b.address}) ||
         unreachable.contains({b.subnet, b.address, a.address});
}

// Processes of one machine that pass for several hosts have the same NICs.
bool same_nics(const RankInfo& a, const RankInfo& b) {
  return a.nics.size() == b.nics.size() &&
         std::is_permutation(a.nics.begin(), a.nics.end(), b.nics.begin());
}

bool is_v6(const Nic& nic) { return nic.address.find(':') != std::string::npos; }

}  // namespace

std::set<std::string> ambiguous_networks(const std::vector<RankInfo>& ranks) {
  std::map<std::pair<std::string, std::string>, const RankInfo*> owners;  // by network and address
  std::set<std::string> ambiguous;
  for (const RankInfo& info : ranks) {
    for (const Nic& nic : info.nics) {
      if (!may_carry_ip(nic) || nic.subnet.empty()) continue;
      const RankInfo& owner =
          *owners.emplace(std::pair(nic.subnet, nic.address), &info).first->second;
      if (owner.host != info.host && !same_nics(owner, info)) ambiguous.insert(nic.subnet);
    }
  }
  return ambiguous;
}

RailCandidates rail_candidates(const RankInfo& info, const std::set<std::string>& ambiguous,
                               const std::set<UnreachablePair>& unreachable) {
  RailCandidates found;
  if (!info.rails) return found;
  std::set<std::string> networks;
  for (size_t i = 0; i < info.nics.size(); ++i) {
    const Nic& nic = info.nics[i];
    if (nic.fabric != Fabric::ethernet) found.key += nic.subnet + '\n';  // RDMA comes first
    if (!may_be_rail(nic) || ambiguous.contains(nic.subnet)) continue;
    if (!networks.insert(nic.subnet).second) continue;
    found.nics.push_back(static_cast<int>(i));
    found.key += std::to_string(i) + ' ' + nic.subnet + ' ' + std::to_string(nic.bandwidth) + '\n';
    for (auto one = unreachable.lower_bound({nic.subnet, nic.address, ""});
         one != unreachable.end() && one->network == nic.subnet && one->address == nic.address;
         ++one) {
      found.key += "unreachable " + one->address + ' ' + one->other + '\n';
    }
  }
  found.key += std::to_string(fastest(info));
  return found;
}

std::vector<Rail> find_rails(const RankInfo& a, const RailCandidates& of_a, const RankInfo& b,
                             const RailCandidates& of_b,
                             const std::set<UnreachablePair>& unreachable) {
  std::vector<Rail> rails;
  for (int own : of_a.nics) {
    for (int peer : of_b.nics) {
      if (a.nics[own].subnet != b.nics[peer].subnet) continue;
      if (a.nics[own].address == b.nics[peer].address) continue;
      rails.push_back({own, peer, std::min(a.nics[own].bandwidth, b.nics[peer].bandwidth)});
    }
  }
  // The same order at both ends, although their NICs may come in other orders.
  std::sort(rails.begin(), rails.end(), [&](const Rail& x, const Rail& y) {
    if (x.bandwidth != y.bandwidth) return x.bandwidth > y.bandwidth;
    return a.nics[x.own].subnet < a.nics[y.own].subnet;
  });
  const int64_t least = rails.empty() ? 0 : rails[0].bandwidth / kLeastShare;
  std::erase_if(rails, [&](const Rail& rail) { return rail.bandwidth < least; });
  int64_t sum = 0;
  for (const Rail& rail : rails) sum += rail.bandwidth;
  // The fastest NICs may share no network. IP then routes between them.
  const bool faster = rails.size() > 1 && sum > std::min(fastest(a), fastest(b));
  if (!faster) return {};
  std::erase_if(rails, [&](const Rail& rail) {
    const Nic &own = a.nics[rail.own], &peer = b.nics[rail.peer];
    return has_failed(unreachable, own, peer) || is_given_up(unreachable, own) ||
           is_given_up(unreachable, peer);
  });
  return rails;
}

std::vector<int> ip_nics(const RankInfo& info) {
  std::vector<int> found;
  for (bool plain : {true, false}) {
    for (size_t i = 0; i < info.nics.size(); ++i) {
      const Nic& nic = info.nics[i];
      if (may_carry_ip(nic) && (nic.fabric == Fabric::ethernet) == plain) {
        found.push_back(static_cast<int>(i));
      }
    }
  }
  return found;
}

namespace {

// IP sends all packets for a network through one NIC, the first one. Only the addresses tell which
// host an ambiguous network leads to, and they are equal.
std::vector<int> path_candidates(const RankInfo& info, const std::set<std::string>& ambiguous) {
  std::set<std::string> networks;
  std::vector<int> found = ip_nics(info);
  std::erase_if(found, [&](int i) {
    const std::string& network = info.nics[i].subnet;
    return ambiguous.contains(network) || (!network.empty() && !networks.insert(network).second);
  });
  return found;
}

}  // namespace

IpPath find_ip_path(const RankInfo& a, const RankInfo& b, const std::set<std::string>& ambiguous,
                    const std::set<UnreachablePair>& unreachable) {
  const std::vector<int> ours = path_candidates(a, ambiguous);
  const std::vector<int> theirs = path_candidates(b, ambiguous);
  bool routed = true;  // no pair on two networks has failed
  for (int own : ours) {
    for (int peer : theirs) {
      const Nic &here = a.nics[own], &there = b.nics[peer];
      if (here.subnet != there.subnet && has_failed(unreachable, here, there)) routed = false;
    }
  }
  // NICs that are not given up, no RDMA port, a common network if routers join no others, the rate
  // of the slower end, a common network, a place early in both lists.
  using Merits = std::tuple<int, bool, bool, int64_t, bool, int>;
  IpPath best;
  Merits merits;
  std::pair<std::string, std::string> addresses;
  for (int own : ours) {
    for (int peer : theirs) {
      const Nic &here = a.nics[own], &there = b.nics[peer];
      if (has_failed(unreachable, here, there) || is_v6(here) != is_v6(there)) continue;
      const bool common = !here.subnet.empty() && here.subnet == there.subnet;
      const bool plain_here = here.fabric == Fabric::ethernet;
      const bool plain_there = there.fabric == Fabric::ethernet;
      const bool plain = common ? plain_here || plain_there : plain_here && plain_there;
      const int given_up = is_given_up(unreachable, here) + is_given_up(unreachable, there);
      const Merits found(-given_up, plain, routed || common,
                         std::min(here.bandwidth, there.bandwidth), common, -own - peer);
      // The same choice among equals at both ends.
      const std::pair ends = std::minmax({here.address, there.address});
      if (best.own >= 0 && (found < merits || (found == merits && ends > addresses))) continue;
      best = {own, peer, common};
      merits = found;
      addresses = ends;
    }
  }
  if (best.own >= 0) return best;
  const std::vector<int> all = ip_nics(a), others = ip_nics(b);
  return {all.empty() ? -1 : all[0], others.empty() ? -1 : others[0], false};
}

}  // namespace hetcomm
