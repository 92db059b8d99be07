#include "bootstrap/exchange.h"

#include <map>
#include <set>

#include "base/config.h"
#include "base/instruction_set.h"
#include "base/sha256.h"
#include "bootstrap/device_facts.h"
#include "bootstrap/engines.h"
#include "bootstrap/process_executor.h"
#include "bootstrap/warnings.h"
#include "codec/codec.h"
#include "topology/networks.h"
#include "topology/probe.h"
#include "topology/rails.h"

namespace hetcomm {
namespace {

// The keys of a rank's record, before its number. The second key is for the record of a rank that
// took another executor.
const char* const kMember = "member/";
const char* const kParted = "parted/";

constexpr size_t kWordBytes = 16;  // unlikely to come twice

constexpr int kMostNamed = 8;  // ranks in one error

// Throws Error(invalid_argument) if a setting differs between ranks, which could then derive
// different plans.
void check_alike(const std::vector<Member>& members, const std::string& variable,
                 const char* remedy, std::string (*value)(const Member&)) {
  const std::string first = value(members[0]);
  std::string others;
  int differing = 0;
  for (size_t rank = 1; rank < members.size(); ++rank) {
    const std::string other = value(members[rank]);
    if (other == first || ++differing > kMostNamed) continue;
    others += ", rank " + std::to_string(rank) + " has " + other;
  }
  if (differing == 0) return;
  if (differing > kMostNamed) {
    others += " and " + std::to_string(differing - kMostNamed) + " more differ";
  }
  throw Error(Code::invalid_argument,
              variable + " differs: rank 0 has " + first + others + "; " + remedy);
}

void check_settings(const std::vector<Member>& members) {
  const char* same = "set the same on every rank";
  check_alike(members, "HETCOMM_SELECT", same,
              [](const Member& member) { return '"' + member.table + '"'; });
  check_alike(members, "HETCOMM_DETERMINISTIC", same,
              [](const Member& member) { return std::string(member.deterministic ? "1" : "0"); });
  check_alike(members, "HETCOMM_BRIDGE_CODEC", same,
              [](const Member& member) { return member.codec; });
  check_alike(members, "HETCOMM_PROFILE", "give every rank the same file of hetcomm tune",
              [](const Member& member) {
                return member.profile.empty() ? std::string("none") : member.profile;
              });
}

class MemberExchange {
 public:
  MemberExchange(Store& store, const Agreement& agreement, const BootstrapOptions& options,
                 Group& group)
      : store_(store), agreement_(agreement), options_(options), group_(group) {}

  Exchange run() {
    std::vector<Member> members(group_.size);
    members[group_.rank] = publish(kMember);
    for (int peer = 0; peer < group_.size; ++peer) {
      if (peer != group_.rank) members[peer] = fetch(kMember, peer);
    }
    take_own_executor(members);
    return {std::move(members), profile_};
  }

 private:
  Member publish(const std::string& key);
  Member probe();
  Member fetch(const std::string& key, int peer) const;
  void take_own_executor(std::vector<Member>& members);

  Store& store_;
  const Agreement& agreement_;
  const BootstrapOptions& options_;
  Group& group_;
  std::shared_ptr<const Profile> profile_;
};

Member MemberExchange::publish(const std::string& key) {
  const std::string mine = key + std::to_string(group_.rank);
  Member member;
  try {
    member = probe();
  } catch (const std::exception&) {
    store_.set(mine, "", agreement_.deadline());  // ends the wait of the other ranks
    throw;
  }
  store_.set(mine, member.pack(), agreement_.deadline());
  return member;
}

Member MemberExchange::probe() {
  Member mine;
  if (!group_.executor) group_.executor = process_executor();
  Executor& executor = *group_.executor;
  mine.info = probe_rank();
  if (!options_.host.empty()) mine.info.host = options_.host;
  if (!options_.vendor.empty()) mine.info.vendor = options_.vendor;
  Transports& transports = executor.transports();
  mine.info.rails = transports.stripes();
  group_.device = open_device(mine.info, transports.main(), options_.device);
  mine.info.libraries["ucx"] =
      transports.main() ? transports.main()->version() : transports.why_none().text();
  instruction_set();  // throws on an unusable HETCOMM_ISA, before the first reduction would
  mine.table = SelectionTable(setting("HETCOMM_SELECT", "")).text();
  mine.deterministic = deterministic();
  mine.codec = options_.codec.empty() ? bridge_codec() : options_.codec;
  codec_setting(mine.codec);  // throws
  profile_ = profile_setting();
  if (profile_) mine.profile = profile_->digest();
  mine.first_sender = group_.queue->senders.first();
  mine.wake_address = executor.wake_address();
  if (transports.main()) mine.shared_memory = transports.main()->shared_memory();
  {
    const auto held = executor.lock();
    mine.local_address = transports.addresses(/*same_host=*/true);
    mine.network_address = transports.addresses(/*same_host=*/false);
  }
  if (group_.size > 1) {
    const std::string first = contact_address(mine.info);
    group_.health =
        make_shared_of_process<Health>(executor, group_.queue, group_.rank, group_.size, first);
    mine.rail_ports = group_.rail_listeners.emplace(mine.info).ports();
    std::set<std::string> listening = {first};
    for (int nic : ip_nics(mine.info)) {  // each peer reaches some of them
      const std::string& address = mine.info.nics[nic].address;
      if (listening.insert(address).second) group_.health->listen_at(address);
    }
    mine.contact = group_.health->contact();
  }
  mine.word = random_bytes(kWordBytes);
  return mine;
}

// An executor holds one end of every link, so ranks that are threads of one process need an
// executor each. All but the lowest rank take another executor, and publish their record again.
void MemberExchange::take_own_executor(std::vector<Member>& members) {
  std::map<std::string, int> ranks;  // so far, by the wake address of the executor
  std::vector<int> number;
  for (const Member& member : members) number.push_back(ranks[member.wake_address]++);
  if (number[group_.rank] > 0) {
    if (options_.executor) {
      store_.set(kParted + std::to_string(group_.rank), "", agreement_.deadline());
      throw Error(Code::invalid_argument,
                  "expected an executor of its own for each rank of the group, got one that "
                  "another rank has as well; make one for each");
    }
    group_.executor = process_executor(number[group_.rank]);
    members[group_.rank] = publish(kParted);
  }
  for (int peer = 0; peer < group_.size; ++peer) {
    if (number[peer] > 0 && peer != group_.rank) members[peer] = fetch(kParted, peer);
  }
}

Member MemberExchange::fetch(const std::string& key, int peer) const {
  const std::string number = std::to_string(peer);
  std::string packed;
  try {
    packed = agreement_.get(key + number);
  } catch (const StoreError&) {
    throw;
  } catch (const Error& error) {
    if (error.status().code() != Code::timeout) throw;
    throw Error(Status(Code::timeout,
                       "rank " + number + " of " + std::to_string(group_.size) +
                           " did not come to group \"" + group_.name + "\" within " +
                           format_seconds(agreement_.deadline().timeout()) + ": " + error.what() +
                           "; see that it runs, or raise the timeout",
                       group_.rank, peer));
  }
  if (packed.empty()) throw Error(agreement_.failure_in(Agreement::kExchange, peer));
  try {
    return Member::unpack(packed);
  } catch (const Error& error) {
    throw Error(
        Status(Code::invalid_argument, "rank " + number + ": " + error.what(), group_.rank, peer));
  }
}

}  // namespace

std::string member_key(int rank) { return kMember + std::to_string(rank); }

Exchange exchange_members(Store& store, const Agreement& agreement, const BootstrapOptions& options,
                          Group& group) {
  Exchange exchanged = MemberExchange(store, agreement, options, group).run();
  check_settings(exchanged.members);
  std::vector<RankInfo> infos;
  for (const Member& member : exchanged.members) infos.push_back(member.info);
  group.topology = std::make_shared<Topology>(std::move(infos));
  if (exchanged.profile) exchanged.profile->match_hosts(*group.topology);
  if (group.rank == 0) warn_of_networks(*group.topology, group.name);
  for (const std::vector<int>& ranks : group.topology->islands()) {
    if (ranks.size() > 1) {
      engine_for(group.topology->rank(ranks[0])).check(*group.topology, ranks);
    }
  }
  return exchanged;
}

}  // namespace hetcomm
