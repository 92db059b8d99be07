// How the ranks of a communicator agree and connect.

#include <algorithm>

#include "base/log.h"
#include "base/packing.h"
#include "bootstrap/warnings.h"
#include "comm/communicator.h"

namespace hetcomm {
namespace {

constexpr auto kReserve = std::chrono::seconds(10);
constexpr int kMostRounds = 20;  // in which groups that are set up at once come to terms

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

// When the first rank gives up: some came earlier than others to where all are now.
Deadline first_of(const std::vector<std::string>& left) {
  std::chrono::nanoseconds least = kLongestTimeout;
  for (const std::string& one : left)
    least = std::min(least, std::chrono::nanoseconds(std::stoll(one)));
  return Deadline(least);
}

}  // namespace

void Communicator::set_up(Store& store, const Deadline& deadline) {
  Agreement agreement(store, rank(), size(), options_.name, deadline);
  std::vector<Member> members;
  std::shared_ptr<const Profile> profile;
  const auto left = agreement.stage(Agreement::kMeet, [&] {
    members = meet(store, agreement, profile);
    return std::to_string(deadline.left().count());
  });
  const Deadline first = first_of(left);
  auto island = [&] {
    return IslandSetup{*topology_, rank(),  members,
                       executor_,  device_, [&](auto bound) { return agreement.failure(bound); }};
  };
  Offer offer;
  const std::vector<Prepared> prepared = prepare(island(), agreement, offer);
  const auto ready = agreement.stage("ready", [&] {
    leave_out_failed_rails(prepared);
    const auto planned = members[rank()].deterministic
                             ? std::make_shared<const Topology>(topology_->without_speeds())
                             : topology_;
    planner_ = std::make_unique<Planner>(
        planned, SelectionTable(members[rank()].table),
        CostParameters(members[rank()].deterministic ? nullptr : profile));
    connect(island(), prepared, first);
    const auto held = executor_->lock();
    return Packer()
        .put(topology_->fingerprint())
        .put(Places(queue_->paths->places()).pack())
        .take();
  });
  std::vector<Places> places;
  for (int peer = 0; peer < size(); ++peer) {
    Unpacker from(ready[peer]);
    const bool same = from.number() == topology_->fingerprint();
    places.push_back(Places::unpack(from.text(), size()));
    if (same) continue;
    throw Error(Status(Code::peer_failed,
                       "rank " + std::to_string(peer) +
                           " derived another topology from the same facts; install the same "
                           "hetcomm version on every rank",
                       rank(), peer));
  }
  settle_places(agreement, std::move(places));
  executor_->attach(queue_);
  if (health_) executor_->add(health_);
  log(LogLevel::info,
      "group \"" + options_.name + "\": " + std::to_string(size()) + " ranks, " +
          std::to_string(topology_->islands().size()) + " islands; " +
          (queue_->paths->island() ? queue_->paths->island()->describe() + "; " : "") + "ucx " +
          topology_->rank(rank()).libraries.at("ucx"),
      rank());
}

std::vector<Communicator::Prepared> Communicator::prepare(const IslandSetup& setup,
                                                          Agreement& agreement, Offer& offer) {
  const auto packed = agreement.stage("named", [&] {
    Prepared mine;
    if (setup.ranks().size() > 1 && setup.ranks()[0] == rank()) {
      mine.island = offer.make(engine_for(topology_->rank(rank())), setup);
    }
    Transport* transport =
        any_without_rdma(*topology_, rank()) ? executor_->ip_transport() : nullptr;
    if (transport != nullptr) {
      const auto held = executor_->lock();
      mine.ip_address = transport->address(false);
    }
    for (int peer = 0; peer < size(); ++peer) {
      for (const Rail& rail : topology_->rails(rank(), peer)) {
        const std::string& interface = topology_->rank(rank()).nics[rail.own].interface;
        if (mine.nic_addresses.contains(rail.own)) continue;
        Transport* over = executor_->nic_transport(interface);
        const auto held = executor_->lock();
        mine.nic_addresses[rail.own] = over->address(false);
      }
    }
    if (health_) {
      auto watch = std::make_unique<RailWatch>();
      mine.failed_rails =
          try_rails(*topology_, rank(), setup.members, agreement.deadline(), *watch);
      health_->watch_rails(std::move(watch));
    }
    return mine.pack();
  });
  std::vector<Prepared> prepared;
  for (const std::string& bytes : packed) prepared.push_back(Prepared::unpack(bytes));
  return prepared;
}

void Communicator::leave_out_failed_rails(const std::vector<Prepared>& prepared) {
  std::vector<FailedRail> failed;
  std::vector<Unjoined> unjoined;
  for (const Prepared& from : prepared) {
    for (const FailedRail& rail : from.failed_rails) {
      failed.push_back(rail);
      unjoined.push_back(rail.unjoined(*topology_));
    }
  }
  if (failed.empty()) return;
  if (rank() == 0) warn_of_rails(*topology_, failed, options_.name);
  std::vector<RankInfo> infos;
  for (int peer = 0; peer < size(); ++peer) infos.push_back(topology_->rank(peer));
  topology_ = std::make_shared<Topology>(std::move(infos), unjoined);
}

void Communicator::connect(const IslandSetup& setup, const std::vector<Prepared>& prepared,
                           const Deadline& deadline) {
  std::vector<PeerAddress> peers;
  std::vector<std::string> contacts;
  for (int peer = 0; peer < size(); ++peer) {
    peers.push_back(peer_address(peer, setup.members[peer], prepared[peer]));
    contacts.push_back(setup.members[peer].contact);
  }
  // What the members have to say in the end must still reach the others in time.
  const auto reserve = std::min<std::chrono::nanoseconds>(deadline.left() / 4, kReserve);
  const Deadline bound(deadline.left() - reserve);
  std::unique_ptr<Island> island;
  if (setup.ranks().size() > 1) {
    island =
        engine_for(topology_->rank(rank())).open(setup, prepared[setup.ranks()[0]].island, bound);
  }
  const int host = topology_->host_of(rank());
  const auto neighbours = static_cast<int>(topology_->hosts()[host].size());
  executor_->set_oversubscribed(neighbours > topology_->processors(host));
  {
    const auto held = executor_->lock();
    queue_->paths = std::make_unique<Paths>(rank(), std::move(peers), std::move(island), device_,
                                            executor_->no_transport());
  }
  if (health_) health_->begin(contacts, setup.members[0].secret, bound);
}

void Communicator::settle_places(Agreement& agreement, std::vector<Places> all) {
  for (int round = 0; !agree(all); ++round) {
    if (round == kMostRounds) {
      throw Error(Code::transport,
                  "group \"" + options_.name +
                      "\": other groups of the same ranks are being set up all the "
                      "time; make them one after the other");
    }
    const auto said = agreement.stage("places " + std::to_string(round), [&] {
      const auto held = executor_->lock();
      for (int peer = 0; peer < size(); ++peer) {
        const auto next = next_places(all, rank(), peer, options_.name, round);
        if (next) queue_->paths->move(peer, *next);
      }
      return Places(queue_->paths->places()).pack();
    });
    for (int peer = 0; peer < size(); ++peer) all[peer] = Places::unpack(said[peer], size());
  }
}

PeerAddress Communicator::peer_address(int peer, const Member& member,
                                       const Prepared& prepared) const {
  const std::vector<Rail> rails = topology_->rails(rank(), peer);
  if (!rails.empty()) {
    Transports::Nics nics;
    std::vector<std::string> addresses;
    for (const Rail& rail : rails) {
      nics.emplace_back(topology_->rank(rank()).nics[rail.own].interface, rail.bandwidth);
      addresses.push_back(prepared.nic_addresses.at(rail.peer));
    }
    return {executor_->rails(nics), rails_address(addresses), member.number};
  }
  Transport* transport =
      without_rdma(*topology_, rank(), peer) ? executor_->ip_transport() : executor_->transport();
  const bool same = topology_->same_host(rank(), peer);
  std::string address = same ? member.local_address : member.network_address;
  if (without_rdma(*topology_, peer, rank())) address = prepared.ip_address;
  return {transport, std::move(address), member.number};
}

std::string Communicator::Prepared::pack() const {
  Packer packer;
  packer.put(island).put(ip_address).put(static_cast<uint64_t>(nic_addresses.size()));
  for (const auto& [nic, address] : nic_addresses) {
    packer.put(static_cast<uint64_t>(nic)).put(address);
  }
  packer.put(uint64_t{failed_rails.size()});
  for (const FailedRail& failed : failed_rails) failed.pack(packer);
  return packer.take();
}

Communicator::Prepared Communicator::Prepared::unpack(const std::string& bytes) {
  Unpacker from(bytes);
  Prepared prepared{from.text(), from.text(), {}, {}};
  for (uint64_t left = from.number(); left > 0; --left) {
    const int nic = static_cast<int>(from.number());
    prepared.nic_addresses[nic] = from.text();
  }
  for (uint64_t left = from.number(); left > 0; --left) {
    prepared.failed_rails.push_back(FailedRail::unpack(from));
  }
  return prepared;
}

}  // namespace hetcomm
