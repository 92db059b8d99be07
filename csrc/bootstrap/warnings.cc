#include "bootstrap/warnings.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "base/fork.h"
#include "base/joined.h"
#include "base/log.h"

namespace hetcomm {
namespace {

constexpr int kMaxLines = 8;  // about failed rails

// True at the first call with this text. Subgroups would repeat the warnings of the whole group.
bool first_time(const std::string& text) {
  struct Warned {
    std::mutex mutex;
    std::set<std::string> texts;
  };
  auto& warned = of_process<Warned>();
  std::lock_guard lock(warned.mutex);
  return warned.texts.insert(text).second;
}

std::string list(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + joined(ranks);
}

// The carrier of the island's messages between hosts: "roce on mlx5_0, mlx5_1".
std::string carrier(const IslandNetwork& network) {
  std::set<std::string> devices;
  for (const auto& member : network.members) {
    devices.insert(member.devices.begin(), member.devices.end());
  }
  const std::string text = network.fabric == Fabric::ethernet ? "sockets" : name(network.fabric);
  return devices.empty() ? text : text + " on " + joined(devices);
}

}  // namespace

void warn_of_networks(const Topology& topology, const std::string& group) {
  const std::string heading = "group \"" + group + "\": ";
  std::map<std::pair<std::string, std::string>, std::vector<int>> ports;  // by host and warning
  for (int rank = 0; rank < topology.size(); ++rank) {
    const RankInfo& info = topology.rank(rank);
    for (const std::string& warning : info.warnings) {
      ports[{info.host_name, warning}].push_back(rank);
    }
  }
  for (const auto& [port, ranks] : ports) {
    const auto& [host, warning] = port;
    if (!first_time(host + ": " + warning)) continue;
    const std::vector<Nic>& nics = topology.rank(ranks[0]).nics;
    std::string text = heading + list(ranks) + " on host " + host + ": " + warning;
    if (!nics.empty()) {
      text += "; the ranks use " + std::string(name(nics[0].fabric)) + " on " + nics[0].name;
    }
    log(LogLevel::warning, text, 0);
  }
  for (size_t island = 0; island < topology.islands().size(); ++island) {
    const IslandNetwork& network = topology.island_network(static_cast<int>(island));
    if (network.passed_over.empty()) continue;
    const std::string text = "island " + std::to_string(island) + " of " +
                             topology.rank(topology.islands()[island][0]).vendor + " (" +
                             list(topology.islands()[island]) + ") uses " + carrier(network) +
                             ", " + network.passed_over;
    if (first_time(text)) log(LogLevel::warning, heading + text, 0);
  }
}

void warn_of_codec(const Topology& topology, const CodecSetting& codec, const std::string& group) {
  if (!codec.codec || codec.codec->lossless()) return;
  for (const std::vector<int>& members : topology.islands()) {
    const auto elsewhere = [&](int rank) { return !topology.same_host(rank, members[0]); };
    if (std::none_of(members.begin(), members.end(), elsewhere)) continue;
    const std::string text =
        "codec " + codec.codec->name() + " encodes nothing inside the island of " + list(members) +
        ", which spans several hosts and has a native library; give the ranks of each host a "
        "HETCOMM_ISLAND of their own";
    if (first_time(text)) log(LogLevel::warning, "group \"" + group + "\": " + text, 0);
  }
}

void warn_of_rails(const Topology& topology, const std::vector<FailedRail>& failed,
                   const std::string& group) {
  int lines = 0;
  std::set<UnreachablePair> seen;  // both ends may report the same pair
  for (const FailedRail& rail : failed) {
    const UnreachablePair unreachable = rail.unreachable(topology);
    const bool known = seen.contains({unreachable.network, unreachable.other, unreachable.address});
    if (!seen.insert(unreachable).second || known || ++lines > kMaxLines) continue;
    const bool any_peer = rail.peer == FailedRail::kAnyPeer;
    const bool one_network =
        any_peer || topology.rank(rail.peer).nics[rail.peer_nic].subnet == unreachable.network;
    const std::string text =
        end_of_rail(topology, rail.rank, rail.nic) + " does not reach " +
        (any_peer ? "many hosts" : end_of_rail(topology, rail.peer, rail.peer_nic)) +
        (one_network ? ", though both list the network " + unreachable.network : "") + " (" +
        rail.why +
        "); messages between them take other NICs; mend the network, or name those to use in "
        "HETCOMM_SOCKET_IFNAME";
    if (first_time(text)) log(LogLevel::warning, "group \"" + group + "\": " + text, 0);
  }
  if (lines <= kMaxLines) return;
  const std::string more =
      std::to_string(lines - kMaxLines) + " more pairs of NICs do not reach each other";
  if (first_time(more)) log(LogLevel::warning, "group \"" + group + "\": " + more, 0);
}

}  // namespace hetcomm
