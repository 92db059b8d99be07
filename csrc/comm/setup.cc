// How the ranks of a communicator agree and connect.

#include <algorithm>

#include "base/log.h"
#include "base/packing.h"
#include "comm/communicator.h"
#include "comm/warnings.h"
#include "exec/link_ends.h"

namespace hetcomm {
namespace {

constexpr auto kReserve = std::chrono::seconds(10);
constexpr int kMostRounds = 20;  // in which groups that are set up at once come to terms

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
    return Packer().put(topology_->fingerprint()).put(queue_->paths->offers().pack()).take();
  });
  std::vector<LinkOffers> offers;
  for (int peer = 0; peer < size(); ++peer) {
    Unpacker from(ready[peer]);
    const bool same = from.number() == topology_->fingerprint();
    offers.push_back(LinkOffers::unpack(from.text(), size()));
    if (same) continue;
    throw Error(Status(Code::peer_failed,
                       "rank " + std::to_string(peer) +
                           " derived another topology from the same facts; install the same "
                           "hetcomm version on every rank",
                       rank(), peer));
  }
  settle_links(agreement, std::move(offers));
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
    {
      const auto ends = link_ends(*topology_, rank());
      const auto held = executor_->lock();
      mine.addresses = executor_->transports().addresses(ends);
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
    contacts.push_back(setup.members[peer].contact);
    PeerAddress& to = peers.emplace_back();
    to.communicator = setup.members[peer].number;
    if (peer == rank()) continue;
    const LinkEnd here = addressed_end(rank(), peer, setup.members[rank()], prepared[rank()]);
    const LinkEnd there = addressed_end(peer, rank(), setup.members[peer], prepared[peer]);
    const auto held = executor_->lock();
    to.route = executor_->transports().route(here, there);
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
                                            executor_->transports().why_none());
  }
  if (health_) health_->begin(contacts, setup.members[0].secret, bound);
}

void Communicator::settle_links(Agreement& agreement, std::vector<LinkOffers> all) {
  for (int round = 0; !agree(all); ++round) {
    if (round == kMostRounds) {
      throw Error(Code::transport,
                  "group \"" + options_.name +
                      "\": other groups of the same ranks are being set up all the "
                      "time; make them one after the other");
    }
    const auto said = agreement.stage("links " + std::to_string(round), [&] {
      const auto held = executor_->lock();
      for (int peer = 0; peer < size(); ++peer) {
        if (!differ(all, rank(), peer)) continue;
        queue_->paths->counter(peer, all[peer][rank()], spread_of(options_.name, round));
      }
      return queue_->paths->offers().pack();
    });
    for (int peer = 0; peer < size(); ++peer) all[peer] = LinkOffers::unpack(said[peer], size());
  }
}

LinkEnd Communicator::addressed_end(int rank, int peer, const Member& member,
                                    const Prepared& prepared) const {
  LinkEnd end = link_end(*topology_, rank, peer);
  end.add_addresses(end.same_host ? member.local_address : member.network_address);
  end.add_addresses(prepared.addresses);
  return end;
}

std::string Communicator::Prepared::pack() const {
  Packer packer;
  packer.put(island).put(addresses).put(uint64_t{failed_rails.size()});
  for (const FailedRail& failed : failed_rails) failed.pack(packer);
  return packer.take();
}

Communicator::Prepared Communicator::Prepared::unpack(const std::string& bytes) {
  Unpacker from(bytes);
  Prepared prepared{from.text(), from.text(), {}};
  for (uint64_t left = from.number(); left > 0; --left) {
    prepared.failed_rails.push_back(FailedRail::unpack(from));
  }
  return prepared;
}

}  // namespace hetcomm
