#include "bootstrap/bootstrap.h"

#include <algorithm>
#include <atomic>
#include <charconv>

#include "base/log.h"
#include "base/packing.h"
#include "bootstrap/agreement.h"
#include "bootstrap/bounded_store.h"
#include "bootstrap/connect.h"
#include "bootstrap/exchange.h"
#include "bootstrap/sealed_store.h"
#include "bootstrap/warnings.h"
#include "codec/codec.h"
#include "health/dump.h"

namespace hetcomm {
namespace {

constexpr auto kLateReaders = std::chrono::seconds(2);
constexpr int kMostProbes = 6;  // rounds; a last one only publishes the addresses of the paths

void check_options(const BootstrapOptions& options) {
  if (options.size < 1 || options.size > Paths::kMaxRanks || options.rank < 0 ||
      options.rank >= options.size) {
    throw Error(Code::invalid_argument, "expected a rank from 0 to size - 1 and a size from 1 to " +
                                            std::to_string(Paths::kMaxRanks) + ", got rank " +
                                            std::to_string(options.rank) + " and size " +
                                            std::to_string(options.size));
  }
  if (options.executor && options.executor->inherited()) {
    throw Error(Code::invalid_argument,
                "expected an executor of this process, got one of the process that forked it; make "
                "one here");
  }
}

// The earliest deadline of all ranks, because ranks begin set-up at different times.
Deadline earliest(const std::vector<std::string>& left) {
  std::chrono::nanoseconds least = kLongestTimeout;
  for (const std::string& text : left) {
    int64_t nanoseconds = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), nanoseconds);
    if (error != std::errc() || end != text.data() + text.size()) {
      throw Error(Code::invalid_argument, "expected the nanoseconds that a rank has left, got \"" +
                                              text.substr(0, 100) +
                                              "\"; run the same hetcomm version on every rank");
    }
    least = std::min(least, std::chrono::nanoseconds(nanoseconds));
  }
  return Deadline(least);
}

void make_planner(Group& group, const Exchange& exchanged) {
  const Member& mine = exchanged.members[group.rank];
  group.make_planner = [mine,
                        profile = exchanged.profile](std::shared_ptr<const Topology> topology) {
    if (mine.deterministic) {
      topology = std::make_shared<const Topology>(topology->without_speeds());
    }
    return std::make_shared<Planner>(std::move(topology), SelectionTable(mine.table),
                                     CostParameters(mine.deterministic ? nullptr : profile),
                                     codec_setting(mine.codec));
  };
  group.planner = group.make_planner(group.topology);
  if (group.rank == 0) warn_of_codec(*group.topology, codec_setting(mine.codec), group.name);
}

// The record of a connected rank: the fingerprint of its topology, and the offers of its links.
std::string pack_result(const Group& group) {
  const auto held = group.executor->lock();
  return Packer()
      .put(group.topology->fingerprint())
      .put(group.queue->paths->offers().pack())
      .take();
}

// The offers of all links, by rank. Throws Error if a rank has another topology.
std::vector<LinkOffers> unpack_results(const Group& group,
                                       const std::vector<std::string>& results) {
  std::vector<LinkOffers> offers;
  for (int peer = 0; peer < group.size; ++peer) {
    Unpacker from(results[peer]);
    const bool same = from.number() == group.topology->fingerprint();
    offers.push_back(LinkOffers::unpack(from.text(), group.size));
    if (same) continue;
    throw Error(Status(Code::peer_failed,
                       "rank " + std::to_string(peer) +
                           " derived another topology from the same facts; install the same "
                           "hetcomm version on every rank",
                       group.rank, peer));
  }
  return offers;
}

void log_group(const Group& group) {
  const Island* island = group.queue->paths->island();
  log(LogLevel::info,
      "group \"" + group.name + "\": " + std::to_string(group.size) + " ranks, " +
          std::to_string(group.topology->islands().size()) + " islands; " +
          (island ? island->describe() + "; " : "") + "ucx " +
          group.topology->rank(group.rank).libraries.at("ucx"),
      group.rank);
}

// Throws Error on every rank if this rank has no usable job key.
SealedStore sealed_store(Store& store, const Group& group) {
  try {
    return SealedStore(store, group.rank);
  } catch (const Error& error) {
    // Ends the wait of the other ranks.
    store.set(member_key(group.rank), "", Deadline(group.timeout));
    Agreement(store, group.rank, group.size, group.name, Deadline(group.timeout))
        .stage(Agreement::kExchange, [&]() -> std::string { throw error; });
    throw;
  }
}

void say_unprotected(const Group& group) {
  static std::atomic<bool> said{false};
  if (group.size == 1 || said.exchange(true)) return;
  log(LogLevel::info,
      "no job key: a program that reaches the job's store can pass for a rank, and end the job; "
      "set HETCOMM_JOB_KEY_FILE on every rank (hetcomm key FILE makes a key)",
      group.rank);
}

// The watch over rails needs the listeners.
bool has_rails(const Group& group) {
  for (int peer = 0; peer < group.size; ++peer) {
    if (!group.topology->rails(group.rank, peer).empty()) return true;
  }
  return false;
}

// A long job makes many groups, and the store must not grow. A rank that has the last value of
// every rank knows that all have read the values before. Rank 0 removes the last ones, and waits
// until nobody reads them. After a late rank they stay.
void remove_values(const Group& group, SealedStore& store) {
  std::vector<std::string> own = store.keys();
  const std::string last = own.back().substr(0, own.back().rfind('/') + 1);
  own.pop_back();
  const std::string over = "over/";
  std::vector<std::string> all = {last + "0"};
  const Deadline bound(kLateReaders);
  try {
    store.remove(own);
    if (group.rank > 0) return store.set(over + std::to_string(group.rank), "", bound);
    for (int peer = 1; peer < group.size; ++peer) {
      const std::string number = std::to_string(peer);
      store.get(over + number, bound);
      all.insert(all.end(), {last + number, over + number});
    }
    store.remove(all);
  } catch (const Error&) {  // the group is complete
  }
}

void run_stages(Group& group, SealedStore& store, Agreement& agreement,
                const BootstrapOptions& options) {
  Exchange exchanged;
  const auto left = agreement.stage(Agreement::kExchange, [&] {
    exchanged = exchange_members(store, agreement, options, group);
    std::string words;
    for (const Member& member : exchanged.members) words += member.word;
    group.key = make_group_key(store.job_key(), words);
    begin_watch(group, exchanged.members, agreement.deadline());
    return std::to_string(agreement.deadline().left().count());
  });
  const Deadline deadline = earliest(left);
  store.use_group_key(group.key);
  const auto island = [&] {
    return IslandSetup{
        *group.topology,   group.rank,
        exchanged.members, group.executor,
        group.device,      [&](const Deadline& bound) {
                         return agreement.failure(bound); }};
  };
  IslandKey key;
  std::vector<ConnectInfo> infos;
  for (int round = 0;; ++round) {
    // Other NICs may take the place of those that failed.
    const std::string name = round == 0 ? "named" : "named again " + std::to_string(round);
    const bool probes = round < kMostProbes;
    const auto packed = agreement.stage(name, [&] {
      return make_connect_info(group, island(), agreement.deadline(), key, probes).pack();
    });
    infos.clear();
    for (const std::string& bytes : packed) infos.push_back(ConnectInfo::unpack(bytes));
    if (!leave_out_failed_rails(group, infos)) break;
  }
  const auto results = agreement.stage("ready", [&] {
    make_planner(group, exchanged);
    connect(group, island(), infos, deadline);
    return pack_result(group);
  });
  agree_on_offers(group, agreement, unpack_results(group, results));
  group.executor->attach(group.queue, group.timeout);
  if (group.health) {
    group.health->complete();
    add_to_dumps(group.health);
  }
  if (!has_rails(group)) group.rail_listeners.reset();
  remove_values(group, store);
  log_group(group);
}

void set_up(Group& group, BoundedStore& bounded, const BootstrapOptions& options) {
  SealedStore store = sealed_store(bounded, group);
  if (!store.sealing()) say_unprotected(group);
  Agreement agreement(store, group.rank, group.size, group.name, Deadline(options.timeout),
                      [&] { return group.health ? group.health->cause() : Status(); });
  bounded.watch([&] { agreement.look(); });
  try {
    if (group.size > 1) agreement.leave_will();
    run_stages(group, store, agreement, options);
  } catch (const std::exception& error) {
    // A failure outside of the stages, too, reaches all ranks.
    const Status cause = agreement.publish(error);
    if (group.health) group.health->give_up(cause);
    agreement.withdraw_will();
    bounded.watch(nullptr);
    throw Error(cause);
  }
  agreement.withdraw_will();
  bounded.watch(nullptr);
}

// Takes the parts of a failed group out of the executor.
void withdraw(Group& group) {
  if (group.health) group.executor->remove(group.health.get());
  if (!group.queue->paths) return;
  group.executor->detach(group.queue);
  const auto held = group.executor->lock();
  group.queue->paths->drop_links();  // the transport may be about to open them
}

}  // namespace

std::unique_ptr<Group> bootstrap(std::shared_ptr<Store> store, const BootstrapOptions& options) {
  check_options(options);
  auto group = std::make_unique<Group>(options);
  BoundedStore bounded(std::move(store), options.look);
  try {
    set_up(*group, bounded, options);
    bounded.throw_interrupt();
  } catch (...) {
    if (group->health) {  // where the failure is an interrupt; others are known already
      group->health->give_up(Status(Code::aborted,
                                    "rank " + std::to_string(group->rank) + " was interrupted",
                                    group->rank, group->rank));
    }
    withdraw(*group);
    bounded.throw_interrupt();
    throw;
  }
  return group;
}

}  // namespace hetcomm
