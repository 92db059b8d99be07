// How the ranks of a communicator find each other and come to one topology.

#include <map>
#include <random>

#include "base/config.h"
#include "comm/communicator.h"
#include "comm/device_facts.h"
#include "comm/warnings.h"
#include "device/reduce.h"
#include "topology/networks.h"
#include "topology/probe.h"

namespace hetcomm {
namespace {

// Under these and its number a rank introduces itself, and once more where it had an executor that
// another rank of the group has as well.
const char* const kMember = "member/";
const char* const kParted = "parted/";

std::string random_secret() {
  std::random_device random;
  std::string secret;
  for (int i = 0; i < 8; ++i) secret += std::to_string(random()) + "-";
  return secret;
}

// Throws Error(invalid_argument) where ranks would price plans by unlike speeds.
void expect_one_profile(const std::vector<Member>& members) {
  std::string said;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    const std::string& profile = members[rank].profile;
    if (rank > 0 && profile == members[0].profile) continue;
    said += (rank == 0 ? "rank " : ", rank ") + std::to_string(rank) +
            (profile.empty() ? " has none" : " has " + profile);
  }
  if (said.find(',') == std::string::npos) return;
  throw Error(Code::invalid_argument, "HETCOMM_PROFILE differs: expected one profile, got " + said +
                                          "; give every rank the same file of hetcomm tune");
}

}  // namespace

Member Communicator::introduce(Store& store, const std::string& key,
                               std::shared_ptr<const Profile>& profile) {
  Member mine;
  try {
    if (!executor_) executor_ = Executor::process();
    mine.info = probe_rank();
    if (!options_.host.empty()) mine.info.host = options_.host;
    if (!options_.vendor.empty()) mine.info.vendor = options_.vendor;
    Transports& transports = executor_->transports();
    mine.info.rails = transports.stripes();
    device_ = open_device(mine.info, transports.main(), options_.device);
    mine.info.libraries["ucx"] =
        transports.main() ? transports.main()->version() : transports.why_none().text();
    instruction_set();  // an unusable HETCOMM_ISA is refused here rather than in the first
                        // reduction
    mine.table = SelectionTable(setting("HETCOMM_SELECT", "")).text();
    mine.deterministic = deterministic();
    profile = profile_setting();
    if (profile) mine.profile = profile->digest();
    mine.number = queue_->number.value();
    mine.wake_address = executor_->wake_address();
    {
      const auto held = executor_->lock();
      mine.local_address = transports.addresses(/*same_host=*/true);
      mine.network_address = transports.addresses(/*same_host=*/false);
    }
    if (size() > 1) {
      health_ = make_shared_of_process<Health>(*executor_, queue_, rank(), size(),
                                               contact_address(mine.info));
      mine.contact = health_->contact();
      mine.rail_ports = rail_listeners_.emplace(mine.info).ports();
    }
    if (rank() == 0) mine.secret = random_secret();
  } catch (const std::exception&) {
    store.set(key + std::to_string(rank()), "");  // so that nobody waits for it
    throw;
  }
  store.set(key + std::to_string(rank()), mine.pack());
  return mine;
}

// An executor has one end of every link, so two ranks of a group need one each.
void Communicator::part_threads(Store& store, const Agreement& agreement,
                                std::vector<Member>& members,
                                std::shared_ptr<const Profile>& profile) {
  std::map<std::string, int> known;  // by the executor: how many ranks it has
  std::vector<int> number;
  for (const Member& member : members) number.push_back(known[member.wake_address]++);
  if (number[rank()] > 0) {
    if (options_.executor) {
      store.set(kParted + std::to_string(rank()), "");
      throw Error(Code::invalid_argument,
                  "expected an executor of its own for each rank of the group, got one that "
                  "another rank has as well; make one for each");
    }
    executor_ = Executor::process(number[rank()]);
    members[rank()] = introduce(store, kParted, profile);
  }
  for (int peer = 0; peer < size(); ++peer) {
    if (number[peer] > 0 && peer != rank()) {
      members[peer] = member(store, kParted, peer, agreement);
    }
  }
}

// Finds out about this rank, tells the others and agrees with them on the topology.
std::vector<Member> Communicator::meet(Store& store, const Agreement& agreement,
                                       std::shared_ptr<const Profile>& profile) {
  std::vector<Member> members(size());
  members[rank()] = introduce(store, kMember, profile);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) members[peer] = member(store, kMember, peer, agreement);
  }
  part_threads(store, agreement, members, profile);
  const Member& mine = members[rank()];
  std::vector<RankInfo> infos;
  for (int peer = 0; peer < size(); ++peer) {
    if (members[peer].table != mine.table) {
      throw Error(Code::invalid_argument,
                  "HETCOMM_SELECT differs: rank " + std::to_string(rank()) + " has \"" +
                      mine.table + "\", rank " + std::to_string(peer) + " has \"" +
                      members[peer].table + "\"; set the same on every rank");
    }
    if (members[peer].deterministic != mine.deterministic) {
      auto said = [](const Member& member) { return member.deterministic ? " has 1" : " has 0"; };
      throw Error(Code::invalid_argument, "HETCOMM_DETERMINISTIC differs: rank " +
                                              std::to_string(rank()) + said(mine) + ", rank " +
                                              std::to_string(peer) + said(members[peer]) +
                                              "; set the same on every rank");
    }
    infos.push_back(members[peer].info);
  }
  expect_one_profile(members);
  topology_ = std::make_shared<Topology>(std::move(infos));
  if (profile) profile->places(*topology_);
  if (rank() == 0) warn_of_networks(*topology_, options_.name);
  for (const std::vector<int>& ranks : topology_->islands()) {
    if (ranks.size() > 1) engine_for(topology_->rank(ranks[0])).check(*topology_, ranks);
  }
  return members;
}

Member Communicator::member(Store& store, const std::string& key, int peer,
                            const Agreement& agreement) const {
  const std::string number = std::to_string(peer);
  std::string packed;
  try {
    packed = store.get(key + number, agreement.deadline());
  } catch (const Error& error) {
    if (error.status().code() != Code::timeout) throw;  // of the store, not of the peer
    throw Error(Status(Code::timeout,
                       "rank " + number + " of " + std::to_string(size()) +
                           " did not come to group \"" + options_.name + "\" within " +
                           format_seconds(agreement.deadline().timeout()) + ": " + error.what() +
                           "; see that it runs, or raise the timeout",
                       rank(), peer));
  }
  if (packed.empty()) throw Error(agreement.reason(Agreement::kMeet, peer));
  try {
    return Member::unpack(packed);
  } catch (const Error& error) {
    throw Error(
        Status(Code::invalid_argument, "rank " + number + ": " + error.what(), rank(), peer));
  }
}

}  // namespace hetcomm
