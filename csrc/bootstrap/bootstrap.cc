#include "bootstrap/bootstrap.h"

#include <algorithm>

#include "base/log.h"
#include "base/packing.h"
#include "bootstrap/agreement.h"
#include "bootstrap/connect.h"
#include "bootstrap/exchange.h"
#include "bootstrap/warnings.h"
#include "codec/codec.h"

namespace hetcomm {
namespace {

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
  for (const std::string& nanoseconds : left) {
    least = std::min(least, std::chrono::nanoseconds(std::stoll(nanoseconds)));
  }
  return Deadline(least);
}

void make_planner(Group& group, const Exchange& exchanged) {
  const Member& mine = exchanged.members[group.rank];
  group.planner = std::make_unique<Planner>(
      mine.deterministic ? std::make_shared<const Topology>(group.topology->without_speeds())
                         : group.topology,
      SelectionTable(mine.table), CostParameters(mine.deterministic ? nullptr : exchanged.profile),
      codec_setting(mine.codec));
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

void set_up(Group& group, Store& store, const BootstrapOptions& options) {
  Agreement agreement(store, group.rank, group.size, group.name, Deadline(options.timeout));
  Exchange exchanged;
  const auto left = agreement.stage(Agreement::kExchange, [&] {
    exchanged = exchange_members(store, agreement, options, group);
    return std::to_string(agreement.deadline().left().count());
  });
  const Deadline deadline = earliest(left);
  const auto island = [&] {
    return IslandSetup{
        *group.topology,   group.rank,
        exchanged.members, group.executor,
        group.device,      [&](const Deadline& bound) {
                         return agreement.failure(bound); }};
  };
  IslandKey key;
  const auto packed = agreement.stage("named", [&] {
    return make_connect_info(group, island(), agreement.deadline(), key).pack();
  });
  std::vector<ConnectInfo> infos;
  for (const std::string& bytes : packed) infos.push_back(ConnectInfo::unpack(bytes));
  const auto results = agreement.stage("ready", [&] {
    leave_out_failed_rails(group, infos);
    make_planner(group, exchanged);
    connect(group, island(), infos, deadline);
    return pack_result(group);
  });
  agree_on_offers(group, agreement, unpack_results(group, results));
  group.executor->attach(group.queue);
  if (group.health) group.executor->add(group.health);
  log_group(group);
}

}  // namespace

std::unique_ptr<Group> bootstrap(Store& store, const BootstrapOptions& options) {
  check_options(options);
  auto group = std::make_unique<Group>(options);
  try {
    set_up(*group, store, options);
  } catch (...) {
    if (group->queue->paths) {
      const auto held = group->executor->lock();
      group->queue->paths->drop_links();  // the transport may be about to open them
    }
    throw;
  }
  return group;
}

}  // namespace hetcomm
