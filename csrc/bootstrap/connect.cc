#include "bootstrap/connect.h"

#include <algorithm>

#include "bootstrap/warnings.h"

namespace hetcomm {
namespace {

// Time for a rank to tell the others why it failed, before they give up.
constexpr auto kReserve = std::chrono::seconds(10);
constexpr int kMaxPlaceRounds = 20;

// Whether messages between `rank` and `peer` must keep away from the RDMA ports that `rank` has: no
// RDMA network joins them, though UCX might think so.
bool without_rdma(const Topology& topology, int rank, int peer) {
  const std::vector<Nic>& nics = topology.rank(rank).nics;
  return topology.fabric_between(rank, peer) == Fabric::ethernet &&
         std::any_of(nics.begin(), nics.end(),
                     [](const Nic& nic) { return nic.fabric != Fabric::ethernet; });
}

bool any_without_rdma(const Topology& topology, int rank) {
  for (int peer = 0; peer < topology.size(); ++peer) {
    if (without_rdma(topology, rank, peer)) return true;
  }
  return false;
}

// The transport to a peer, and the address that its connect() takes.
PeerAddress peer_address(const Group& group, int peer, const Member& member,
                         const ConnectInfo& info) {
  const Topology& topology = *group.topology;
  Executor& executor = *group.executor;
  const std::vector<Rail> rails = topology.rails(group.rank, peer);
  if (!rails.empty()) {
    Transports::Nics nics;
    std::vector<std::string> addresses;
    for (const Rail& rail : rails) {
      nics.emplace_back(topology.rank(group.rank).nics[rail.own].interface, rail.bandwidth);
      addresses.push_back(info.rail_addresses.at(rail.peer));
    }
    return {executor.rails(nics), rails_address(addresses), member.number};
  }
  Transport* transport =
      without_rdma(topology, group.rank, peer) ? executor.ip_transport() : executor.transport();
  const bool same = topology.same_host(group.rank, peer);
  std::string address = same ? member.local_address : member.network_address;
  if (without_rdma(topology, peer, group.rank)) address = info.ip_address;
  return {transport, std::move(address), member.number};
}

// The addresses of this rank's NICs that are rails, by index.
std::map<int, std::string> rail_addresses(Group& group) {
  std::map<int, std::string> addresses;
  for (int peer = 0; peer < group.size; ++peer) {
    for (const Rail& rail : group.topology->rails(group.rank, peer)) {
      if (addresses.contains(rail.own)) continue;
      const std::string& interface = group.topology->rank(group.rank).nics[rail.own].interface;
      Transport* over = group.executor->nic_transport(interface);
      const auto held = group.executor->lock();
      addresses[rail.own] = over->address(false);
    }
  }
  return addresses;
}

}  // namespace

ConnectInfo make_connect_info(Group& group, const IslandSetup& setup, const Deadline& deadline,
                              IslandKey& key) {
  ConnectInfo info;
  if (setup.ranks().size() > 1 && setup.ranks()[0] == group.rank) {
    info.island_key = key.make(engine_for(group.topology->rank(group.rank)), setup);
  }
  if (any_without_rdma(*group.topology, group.rank)) {
    if (Transport* transport = group.executor->ip_transport()) {
      const auto held = group.executor->lock();
      info.ip_address = transport->address(false);
    }
  }
  info.rail_addresses = rail_addresses(group);
  if (group.health) {
    auto watch = std::make_unique<RailWatch>();
    info.failed_rails = probe_rails(*group.topology, group.rank, setup.members, deadline, *watch);
    group.health->watch_rails(std::move(watch));
  }
  return info;
}

void leave_out_failed_rails(Group& group, const std::vector<ConnectInfo>& infos) {
  std::vector<FailedRail> failed;
  std::vector<UnreachablePair> unreachable;
  for (const ConnectInfo& info : infos) {
    for (const FailedRail& rail : info.failed_rails) {
      failed.push_back(rail);
      unreachable.push_back(rail.unreachable(*group.topology));
    }
  }
  if (failed.empty()) return;
  if (group.rank == 0) warn_of_rails(*group.topology, failed, group.name);
  std::vector<RankInfo> ranks;
  for (int peer = 0; peer < group.size; ++peer) ranks.push_back(group.topology->rank(peer));
  group.topology = std::make_shared<Topology>(std::move(ranks), unreachable);
}

void connect(Group& group, const IslandSetup& setup, const std::vector<ConnectInfo>& infos,
             const Deadline& deadline) {
  const Topology& topology = *group.topology;
  std::vector<PeerAddress> peers;
  std::vector<std::string> contacts;
  for (int peer = 0; peer < group.size; ++peer) {
    peers.push_back(peer_address(group, peer, setup.members[peer], infos[peer]));
    contacts.push_back(setup.members[peer].contact);
  }
  const auto reserve = std::min<std::chrono::nanoseconds>(deadline.left() / 4, kReserve);
  const Deadline bound(deadline.left() - reserve);
  std::unique_ptr<Island> island;
  if (setup.ranks().size() > 1) {
    const std::string& key = infos[setup.ranks()[0]].island_key;
    island = engine_for(topology.rank(group.rank)).open(setup, key, bound);
  }
  const int host = topology.host_of(group.rank);
  const auto neighbours = static_cast<int>(topology.hosts()[host].size());
  group.executor->set_oversubscribed(neighbours > topology.processors(host));
  {
    const auto held = group.executor->lock();
    group.queue->paths = std::make_unique<Paths>(group.rank, std::move(peers), std::move(island),
                                                 group.device, group.executor->no_transport());
  }
  if (group.health) group.health->begin(contacts, setup.members[0].secret, bound);
}

void agree_on_places(Group& group, Agreement& agreement, std::vector<Places> all) {
  for (int round = 0; !agree(all); ++round) {
    if (round == kMaxPlaceRounds) {
      throw Error(Code::transport,
                  "group \"" + group.name +
                      "\": other groups of the same ranks are being set up all the "
                      "time; make them one after the other");
    }
    const auto published = agreement.stage("places " + std::to_string(round), [&] {
      const auto held = group.executor->lock();
      for (int peer = 0; peer < group.size; ++peer) {
        const auto next = next_places(all, group.rank, peer, group.name, round);
        if (next) group.queue->paths->move(peer, *next);
      }
      return Places(group.queue->paths->places()).pack();
    });
    for (int peer = 0; peer < group.size; ++peer) {
      all[peer] = Places::unpack(published[peer], group.size);
    }
  }
}

}  // namespace hetcomm
