#include "bootstrap/engines.h"

#include <algorithm>

#include "base/config.h"
#include "base/joined.h"
#include "device/vendor.h"
#include "island/ccl/ccl.h"
#include "island/shm/shm.h"

namespace hetcomm {
namespace {

// All members have come by the time they map the memory, so a short wait is enough.
constexpr std::chrono::nanoseconds kAttachBound = std::chrono::seconds(30);

ShmOptions shm_options(const IslandSetup& setup) {
  ShmOptions options;
  options.ranks = setup.ranks();
  options.member = setup.topology.index_in_island(setup.rank);
  options.members = static_cast<int>(options.ranks.size());
  options.across_namespaces = setting("HETCOMM_HOST_ID").has_value();
  options.describe_call = describe_call;
  options.failure = setup.failure;
  std::vector<std::string> addresses;
  for (int member : options.ranks) addresses.push_back(setup.members[member].wake_address);
  options.wake = [executor = setup.executor.get(), addresses](int member) {
    executor->wake(addresses[member]);
  };
  return options;
}

void check_libraries(const Topology& topology, const std::vector<int>& ranks) {
  for (int rank : ranks) {
    const RankInfo& info = topology.rank(rank);
    if (!info.ccl.empty()) continue;
    const auto reason = info.libraries.find("ccl");
    throw Error(Status(Code::vendor,
                       "rank " + std::to_string(rank) + " on " + info.host_name + ": no usable " +
                           find_vendor(info.vendor)->ccl.name + ", which its island of " +
                           std::to_string(ranks.size()) + " ranks needs: " +
                           (reason == info.libraries.end() ? "" : reason->second),
                       -1, rank));
  }
}

// Sets NCCL's variables for the island's network; "=" takes names literally.
void apply_network(const IslandNetwork& network, int member, CclOptions& options) {
  const IslandNetwork::Member& mine = network.members[member];
  if (!mine.interface.empty()) options.environment["NCCL_SOCKET_IFNAME"] = "=" + mine.interface;
  const bool rdma = network.fabric == Fabric::infiniband || network.fabric == Fabric::roce;
  if (network.fabric == Fabric::ethernet) options.network = "Socket";
  if (!rdma) return;
  options.network = "IB";
  options.environment["NCCL_IB_HCA"] = "=" + joined(mine.devices, ",");
  if (mine.gid >= 0) options.environment["NCCL_IB_GID_INDEX"] = std::to_string(mine.gid);
}

CclOptions ccl_options(const IslandSetup& setup, const std::string& unique_id) {
  CclOptions options;
  options.device = setup.device;
  options.ranks = setup.ranks();
  options.member = setup.topology.index_in_island(setup.rank);
  options.members = static_cast<int>(options.ranks.size());
  options.unique_id = unique_id;
  options.describe_call = describe_call;
  options.failure = setup.failure;
  read_ccl_settings(options);
  apply_network(setup.topology.island_network(setup.topology.island_of(setup.rank)), options.member,
                options);
  // NVLink SHARP's switches add up in no fixed order.
  if (deterministic()) options.environment["NCCL_NVLS_ENABLE"] = "0";
  return options;
}

// The unique id, and then the settings. With unequal settings members would wait for each other in
// different calls.
std::string make_ccl_key(const IslandSetup& setup) {
  const CclOptions options = ccl_options(setup, "");
  return make_ccl_id(setup.device->vendor(), options.environment) + describe_ccl_settings(options);
}

std::unique_ptr<Island> open_ccl(const IslandSetup& setup, const std::string& key,
                                 Deadline deadline) {
  CclOptions options = ccl_options(setup, key.substr(0, kCclIdBytes));
  const std::string theirs = key.substr(std::min(key.size(), kCclIdBytes));
  if (const std::string mine = describe_ccl_settings(options); mine != theirs) {
    throw Error(Code::invalid_argument,
                "expected equal settings on the ranks of a native island; got " + mine +
                    " on rank " + std::to_string(setup.rank) + " and " + theirs + " on rank " +
                    std::to_string(options.ranks[0]) + "; set them alike on all ranks");
  }
  return open_ccl_island(options, deadline);
}

std::string make_shm_key(const IslandSetup& setup) {
  return create_shm_segment(shm_options(setup));
}

std::unique_ptr<Island> open_shm(const IslandSetup& setup, const std::string& segment,
                                 Deadline deadline) {
  ShmOptions options = shm_options(setup);
  options.name = segment;
  return open_shm_island(options, Deadline(std::min(deadline.left(), kAttachBound)));
}

const Engine kEngines[] = {
    {
        .serves = [](const RankInfo& info) { return info.memory != Memory::host; },
        .check = check_libraries,
        .make_key = make_ccl_key,
        .discard_key = [](const std::string&) {},
        .open = open_ccl,
    },
    {
        .serves = [](const RankInfo& info) { return info.memory == Memory::host; },
        .check = [](const Topology&, const std::vector<int>&) {},
        .make_key = make_shm_key,
        .discard_key = remove_shm_segment,
        .open = open_shm,
    },
};

}  // namespace

const Engine& engine_for(const RankInfo& info) {
  return *std::find_if(std::begin(kEngines), std::end(kEngines),
                       [&](const Engine& engine) { return engine.serves(info); });
}

}  // namespace hetcomm
