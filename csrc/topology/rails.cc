#include "topology/rails.h"

#include <algorithm>
#include <map>

namespace hetcomm {
namespace {

// A NIC below one part in so many of the fastest rate is no rail. It would rather delay messages
// than help, or it is made for other traffic.
constexpr int64_t kLeastShare = 8;

bool may_be_rail(const Nic& nic) {
  // The share of the bytes follows from the rate.
  return nic.fabric == Fabric::ethernet && nic.bandwidth_known && nic.bandwidth > 0 &&
         !nic.interface.empty() && !nic.address.empty() && !nic.subnet.empty();
}

int64_t fastest(const RankInfo& info) {
  int64_t found = 0;
  for (const Nic& nic : info.nics) {
    if (nic.fabric == Fabric::ethernet) found = std::max(found, nic.bandwidth);
  }
  return found;
}

bool is_unreachable(const std::set<UnreachablePair>& unreachable, const Nic& a, const Nic& b) {
  return unreachable.contains({a.subnet, a.address, b.address}) ||
         unreachable.contains({a.subnet, a.address, ""}) ||
         unreachable.contains({b.subnet, b.address, ""});
}

}  // namespace

std::set<std::string> ambiguous_networks(const std::vector<RankInfo>& ranks) {
  std::map<std::pair<std::string, std::string>, std::string> hosts;  // by network and address
  std::set<std::string> ambiguous;
  for (const RankInfo& info : ranks) {
    for (const Nic& nic : info.nics) {
      if (!may_be_rail(nic)) continue;
      const auto entry = hosts.emplace(std::pair(nic.subnet, nic.address), info.host).first;
      if (entry->second != info.host) ambiguous.insert(nic.subnet);
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
    return is_unreachable(unreachable, a.nics[rail.own], b.nics[rail.peer]);
  });
  return rails;
}

}  // namespace hetcomm
