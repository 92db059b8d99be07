#include "bootstrap/connect.h"

#include <algorithm>

#include "base/config.h"
#include "base/fnv.h"
#include "base/packing.h"
#include "bootstrap/warnings.h"
#include "device/vendor.h"
#include "topology/rails.h"

namespace hetcomm {
namespace {

// The time for a rank to publish why it failed, before the other ranks give up.
constexpr auto kReserve = std::chrono::seconds(10);
constexpr std::chrono::seconds kWatchPeriod(60);  // see HETCOMM_WATCH
constexpr int kMostRounds = 20;                   // until the ends of all links agree

bool share_memory(const Member& one, const Member& other) {
  return std::any_of(one.shared_memory.begin(), one.shared_memory.end(), [&](const auto& kind) {
    return std::count(other.shared_memory.begin(), other.shared_memory.end(), kind) > 0;
  });
}

// A rank's end of the link to `peer`, without addresses. All ranks derive the same.
LinkEnd link_end(const Topology& topology, const std::vector<Member>& members, int rank, int peer) {
  const RankInfo& info = topology.rank(rank);
  const bool by_ip = topology.fabric_between(rank, peer) == Fabric::ethernet;
  const bool has_rdma = std::any_of(info.nics.begin(), info.nics.end(),
                                    [](const Nic& nic) { return nic.fabric != Fabric::ethernet; });
  LinkEnd end;
  end.same_host = topology.same_host(rank, peer);
  end.avoids_rdma = by_ip && has_rdma;
  end.over_ip = by_ip || (end.same_host && !share_memory(members[rank], members[peer]));
  for (const Rail& rail : topology.rails(rank, peer)) {
    end.stripes.push_back({info.nics[rail.own].interface, rail.bandwidth});
  }
  if (by_ip && end.stripes.empty() && info.rails && ip_nics(info).size() > 1) {
    end.interface = info.nics[topology.ip_path(rank, peer).own].interface;
  }
  if (info.memory == Memory::device && !topology.staged(rank, peer)) {
    end.memory.push_back(find_vendor(info.vendor)->memory);
  }
  return end;
}

LinkEnd addressed_end(const Topology& topology, const std::vector<Member>& members, int rank,
                      int peer, const ConnectInfo& info) {
  LinkEnd end = link_end(topology, members, rank, peer);
  end.add_addresses(end.same_host ? members[rank].local_address : members[rank].network_address);
  end.add_addresses(info.addresses);
  return end;
}

// The route of this rank to a peer, and the peer's SenderNumbers.
PeerAddress peer_address(const Group& group, int peer, const IslandSetup& setup,
                         const std::vector<ConnectInfo>& infos) {
  PeerAddress to;
  to.first_sender = setup.members[peer].first_sender;
  if (peer == group.rank) return to;
  const auto end = [&](int rank, int other) {
    return addressed_end(*group.topology, setup.members, rank, other, infos[rank]);
  };
  const LinkEnd here = end(group.rank, peer), there = end(peer, group.rank);
  const auto held = group.executor->lock();
  to.route = group.executor->transports().route(here, there);
  return to;
}

// The stripes of this rank's links.
std::vector<OwnStripe> own_stripes(const Topology& topology, int rank) {
  std::vector<OwnStripe> stripes;
  for (int peer = 0; peer < topology.size(); ++peer) {
    if (topology.same_host(rank, peer)) continue;
    size_t stripe = 0;
    for (const Rail& rail : topology.rails(rank, peer)) {
      stripes.push_back({peer, stripe++, ends_of_rail(topology, rank, rail.own, peer, rail.peer),
                         rail.bandwidth});
    }
  }
  return stripes;
}

// The address of a peer's NIC at the other end of the IP path; empty inside a host.
std::string path_address(const Topology& topology, int rank, int peer) {
  if (topology.same_host(rank, peer)) return "";
  const int nic = topology.ip_path(rank, peer).peer;
  return nic < 0 ? "" : topology.rank(peer).nics[nic].address;
}

// The addresses at the far ends of all rails to a peer, the fastest first.
std::vector<std::string> rail_addresses(const Topology& topology, int rank, int peer) {
  std::vector<std::string> addresses;
  if (topology.same_host(rank, peer)) return addresses;
  for (const Rail& rail : topology.rails(rank, peer)) {
    addresses.push_back(topology.rank(peer).nics[rail.peer].address);
  }
  return addresses;
}

// Whether the two ends of a link have different offers.
bool differ(const std::vector<LinkOffers>& all, int rank, int peer) {
  const std::string &mine = all[rank][peer], &theirs = all[peer][rank];
  return !mine.empty() && !theirs.empty() && mine != theirs;
}

bool agree(const std::vector<LinkOffers>& all) {
  const int size = static_cast<int>(all.size());
  for (int rank = 0; rank < size; ++rank) {
    for (int peer = 0; peer < rank; ++peer) {
      if (differ(all, rank, peer)) return false;
    }
  }
  return true;
}

// The spread of a group's counter-offers (see Link::counter()): 0 in the first round.
uint64_t spread_of(const std::string& group, int round) {
  return fnv1a(group + "/" + std::to_string(round)) % ((uint64_t(round) << 2) + 1);
}

// By the cost model, which knows no ranks that take turns on a processor for other reasons.
void watch_pace(Group& group) {
  const std::chrono::seconds period(
      setting("HETCOMM_WATCH", kWatchPeriod.count(), 0, kLongestTimeout.count()));
  if (period.count() == 0) return;
  const auto predicted = [planner = group.planner](Collective collective, Dtype dtype,
                                                   int64_t count) -> int64_t {
    const auto choice = planner->choose({.collective = collective, .dtype = dtype, .count = count});
    for (const Planner::Candidate& candidate : choice.candidates) {
      if (candidate.algorithm == choice.algorithm && candidate.rejected.empty()) {
        return candidate.cost.total;
      }
    }
    return 0;
  };
  group.health->watch_pace(predicted, period);
}

}  // namespace

std::string ConnectInfo::pack() const {
  Packer packer;
  packer.put(island_key).put(addresses).put(uint64_t{failed_rails.size()});
  for (const FailedRail& failed : failed_rails) failed.pack(packer);
  return packer.take();
}

ConnectInfo ConnectInfo::unpack(const std::string& bytes) {
  Unpacker from(bytes);
  ConnectInfo info{from.text(), from.text(), {}};
  for (uint64_t left = from.number(); left > 0; --left) {
    info.failed_rails.push_back(FailedRail::unpack(from));
  }
  return info;
}

void begin_watch(Group& group, const std::vector<Member>& members, const Deadline& deadline) {
  if (!group.health) return;
  const Topology& topology = *group.topology;
  std::vector<RankPlace> places;
  std::vector<ControlPlane::Neighbour> neighbours;
  for (int rank = 0; rank < group.size; ++rank) {
    places.push_back({topology.rank(rank).host_name, topology.island_of(rank)});
    neighbours.push_back({members[rank].contact, path_address(topology, group.rank, rank)});
  }
  group.health->introduce(group.name, std::move(places));
  if (topology.hosts().size() == 1) group.health->share_host();
  group.queue->monitor = group.health;  // before another thread may read it
  group.executor->add(group.health);
  group.health->begin(Ring(topology.hosts()), neighbours, group.key, deadline);
}

ConnectInfo make_connect_info(Group& group, const IslandSetup& setup, const Deadline& deadline,
                              IslandKey& key, bool probes) {
  ConnectInfo info;
  if (setup.ranks().size() > 1 && setup.ranks()[0] == group.rank) {
    info.island_key = key.make(engine_for(group.topology->rank(group.rank)), setup);
  }
  {
    std::vector<LinkEnd> ends;
    for (int peer = 0; peer < group.size; ++peer) {
      if (peer == group.rank) continue;
      ends.push_back(link_end(*group.topology, setup.members, group.rank, peer));
    }
    const auto held = group.executor->lock();
    info.addresses = group.executor->transports().addresses(ends);
  }
  if (group.health && probes) {
    auto watch = std::make_unique<RailWatch>();
    info.failed_rails = probe_rails(*group.topology, group.rank, setup.members, deadline, *watch);
    group.health->watch_rails(std::move(watch));
  }
  return info;
}

bool leave_out_failed_rails(Group& group, const std::vector<ConnectInfo>& infos) {
  std::vector<FailedRail> failed;
  const std::set<UnreachablePair>& known = group.topology->unreachable();
  std::vector<UnreachablePair> unreachable(known.begin(), known.end());
  for (const ConnectInfo& info : infos) {
    for (const FailedRail& rail : info.failed_rails) {
      failed.push_back(rail);
      unreachable.push_back(rail.unreachable(*group.topology));
    }
  }
  if (failed.empty()) return false;
  if (group.rank == 0) warn_of_rails(*group.topology, failed, group.name);
  std::vector<RankInfo> ranks;
  for (int peer = 0; peer < group.size; ++peer) ranks.push_back(group.topology->rank(peer));
  group.topology = std::make_shared<Topology>(std::move(ranks), unreachable);
  return true;
}

void connect(Group& group, const IslandSetup& setup, const std::vector<ConnectInfo>& infos,
             const Deadline& deadline) {
  const Topology& topology = *group.topology;
  std::vector<PeerAddress> peers;
  for (int peer = 0; peer < group.size; ++peer) {
    peers.push_back(peer_address(group, peer, setup, infos));
  }
  const auto reserve = std::min<std::chrono::nanoseconds>(deadline.left() / 4, kReserve);
  const Deadline bound(deadline.left() - reserve);
  std::unique_ptr<Island> island;
  if (setup.ranks().size() > 1) {
    const std::string& key = infos[setup.ranks()[0]].island_key;
    island = engine_for(topology.rank(group.rank)).open(setup, key, bound);
  }
  const int host = topology.host_of(group.rank);
  const auto ranks_here = static_cast<int>(topology.hosts()[host].size());
  group.executor->set_oversubscribed(ranks_here > topology.processors(host));
  {
    const auto held = group.executor->lock();
    group.queue->paths =
        std::make_unique<Paths>(group.rank, std::move(peers), std::move(island), group.device,
                                group.executor->transports().why_none());
  }
  if (group.health) {
    std::vector<std::vector<std::string>> rails;
    for (int peer = 0; peer < group.size; ++peer) {
      rails.push_back(rail_addresses(topology, group.rank, peer));
    }
    group.health->use_stripes(own_stripes(topology, group.rank));
    watch_pace(group);
    group.health->connect_rails(rails);
    group.health->await_proofs(bound);
  }
}

void agree_on_offers(Group& group, Agreement& agreement, std::vector<LinkOffers> all) {
  for (int round = 0; !agree(all); ++round) {
    if (round == kMostRounds) {
      throw Error(Code::transport,
                  "group \"" + group.name +
                      "\": other groups of the same ranks are being set up all the "
                      "time; make them one after the other");
    }
    const auto published = agreement.stage("links " + std::to_string(round), [&] {
      const auto held = group.executor->lock();
      for (int peer = 0; peer < group.size; ++peer) {
        if (!differ(all, group.rank, peer)) continue;
        group.queue->paths->counter(peer, all[peer][group.rank], spread_of(group.name, round));
      }
      return group.queue->paths->offers().pack();
    });
    for (int peer = 0; peer < group.size; ++peer) {
      all[peer] = LinkOffers::unpack(published[peer], group.size);
    }
  }
}

}  // namespace hetcomm
