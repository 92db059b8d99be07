#include "topology/topology.h"

#include <set>
#include <utility>

#include "base/status.h"

namespace hetcomm {
namespace {

// A petabyte per second: no NIC has it, and sums over a job's ranks stay far below an overflow.
constexpr int64_t highest_bandwidth = 1'000'000'000'000'000;

void validate(const std::vector<RankInfo>& ranks) {
  if (ranks.empty()) {
    throw Error(Code::invalid_argument, "expected the facts of at least one rank, got none");
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankInfo& info = ranks[rank];
    auto expect = [rank](bool condition, const std::string& expected, const std::string& got) {
      if (condition) return;
      throw Error(Code::invalid_argument, "facts of rank " + std::to_string(rank) + ": expected " +
                                              expected + ", got " + got);
    };
    expect(!info.host.empty(), "the identity of its host", "an empty text");
    expect(!info.vendor.empty(), "a vendor such as cpu, nvidia or amd", "an empty text");
    expect(info.memory <= Memory::direct, "a known kind of memory",
           "number " + std::to_string(static_cast<int>(info.memory)));
    expect(info.cores >= 1, "at least one core", std::to_string(info.cores));
    for (const Nic& nic : info.nics) {
      expect(nic.fabric <= Fabric::ethernet, "a known fabric for NIC " + nic.name,
             "number " + std::to_string(static_cast<int>(nic.fabric)));
      expect(nic.bandwidth >= 0 && nic.bandwidth <= highest_bandwidth,
             "a bandwidth from 0 to " + std::to_string(highest_bandwidth) +
                 " bytes per second for NIC " + nic.name,
             std::to_string(nic.bandwidth));
    }
  }
}

// Ranks with equal keys form one island: the only place that decides what one engine serves. The
// shared-memory engine (vendor cpu) and the native libraries alike serve the ranks of one host.
std::pair<std::string, std::string> island_key(const RankInfo& info) {
  return {info.vendor, info.host};
}

// Splits the ranks by key: groups sorted by first rank, and the group of each rank.
template <typename KeyOf>
std::vector<std::vector<int>> group_by(const std::vector<RankInfo>& ranks, KeyOf key_of,
                                       std::vector<int>& group_of) {
  std::vector<std::vector<int>> groups;
  std::map<decltype(key_of(ranks[0])), int> found;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    auto [entry, is_new] = found.emplace(key_of(ranks[rank]), static_cast<int>(groups.size()));
    if (is_new) groups.emplace_back();
    groups[entry->second].push_back(static_cast<int>(rank));
    group_of.push_back(entry->second);
  }
  return groups;
}

bool has(const RankInfo& info, Fabric fabric) {
  for (const Nic& nic : info.nics) {
    if (nic.fabric == fabric) return true;
  }
  return false;
}

// FNV-1a, 64 bits: the same on every machine, whatever its byte order.
uint64_t hash(const std::vector<RankInfo>& ranks) {
  uint64_t value = 0xcbf29ce484222325;
  for (const RankInfo& info : ranks) {
    std::string text = serialize(info);
    text += '\0';  // never part of the text, so it separates the ranks
    for (unsigned char byte : text) value = (value ^ byte) * 0x100000001b3;
  }
  return value;
}

}  // namespace

Topology::Topology(std::vector<RankInfo> ranks) : ranks_(std::move(ranks)) {
  validate(ranks_);
  islands_ = group_by(ranks_, island_key, island_of_);
  hosts_ = group_by(ranks_, [](const RankInfo& info) { return info.host; }, host_of_);
  index_in_island_.resize(ranks_.size());
  for (const auto& members : islands_) {
    for (size_t i = 0; i < members.size(); ++i) index_in_island_[members[i]] = static_cast<int>(i);
  }
  networks_.resize(islands_.size());
  for (const auto& members : hosts_) {
    int64_t bandwidth = 0;
    std::set<std::string> counted;
    for (int member : members) {
      const auto& nics = ranks_[member].nics;
      if (!nics.empty() && counted.insert(nics[0].name).second) bandwidth += nics[0].bandwidth;
    }
    host_bandwidth_.push_back(bandwidth);
  }
  std::vector<int> everyone(ranks_.size());
  for (size_t rank = 0; rank < ranks_.size(); ++rank) everyone[rank] = static_cast<int>(rank);
  levels_ = {{"island", islands_}, {"host", hosts_}, {"cluster", {everyone}}};
  fingerprint_ = hash(ranks_);
}

int64_t Topology::uplink(int rank) const {
  int host = host_of_[rank];
  return host_bandwidth_[host] / static_cast<int64_t>(hosts_[host].size());
}

bool Topology::staged(int rank, int peer) const {
  const Memory memory = ranks_[rank].memory;
  return memory == Memory::device ||
         (memory == Memory::direct && fabric_between(rank, peer) == Fabric::ethernet);
}

Fabric Topology::fabric_between(int a, int b) const {
  if (same_host(a, b)) return Fabric::shm;
  for (Fabric fabric : {Fabric::infiniband, Fabric::roce}) {
    if (has(ranks_[a], fabric) && has(ranks_[b], fabric)) return fabric;
  }
  return Fabric::ethernet;  // IP reaches every host, over RDMA ports as well
}

}  // namespace hetcomm
