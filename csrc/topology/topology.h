#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace hetcomm {

// A kind of connection.
enum class Fabric : uint8_t { shm, pcie, infiniband, roce, ethernet };
const char* name(Fabric fabric);
Fabric fabric_from_name(const std::string& name);  // throws Error(invalid_argument)

// Where a rank's buffers live.
enum class Memory : uint8_t { host, device };
const char* name(Memory memory);

// One network interface or RDMA port, as its host sees it.
struct Nic {
  std::string name;       // "eth0", "mlx5_0" (its port 1; further ports are "mlx4_0:2")
  std::string interface;  // the network interface that carries its address, "eth0"; may be empty
  Fabric fabric = Fabric::ethernet;
  int64_t bandwidth = 0;         // bytes per second and direction
  bool bandwidth_known = false;  // false: the driver reports none, or it is shared
  int numa = -1;                 // NUMA node, -1 if unknown
  std::string address;           // IPv4 (or IPv6) address of the interface, empty if none
  // The network it is part of: an InfiniBand subnet prefix "fe80:0000:0000:0000", else an IP
  // network "10.1.0.0/16". Empty if unknown.
  std::string subnet;
  int gid = -1;  // roce: index of the RoCE v2 GID with the address; -1: none

  bool operator==(const Nic&) const = default;
};

// What one rank found about itself: the facts that all ranks exchange at init. Plans may depend on
// these and on nothing else.
struct RankInfo {
  std::string host;       // identity of the memory system, see host_identity()
  std::string host_name;  // for people
  std::string vendor = "cpu";
  int cores = 1;                // processors this rank may run on
  std::vector<int> processors;  // which, ascending; empty: any of its host
  Memory memory = Memory::host;
  // Over which its transport sends and receives its device's memory by itself; shm: to and from
  // ranks of its host that have the same vendor and can, too.
  std::set<Fabric> direct;
  bool kernels = false;                          // its device reduces by itself
  std::string device;                            // for people: "NVIDIA H200 0000:1b:00.0"
  std::string ccl;                               // its native library: "NCCL 2.28.3"
  bool float8 = false;                           // which reduces 8-bit floats on its device
  bool rails = false;                            // its transport can use several NICs together
  std::string island;                            // label that the user groups by, mostly empty
  std::vector<Nic> nics;                         // usable ones, best first
  std::vector<std::string> warnings;             // ports that lack a setting only, and the remedy
  std::map<std::string, std::string> libraries;  // "ucx" -> "1.22.0 (path)"

  bool operator==(const RankInfo&) const = default;
};

// Lines of text that parse_rank_info() reads back to an equal value.
std::string serialize(const RankInfo& info);
RankInfo parse_rank_info(
    const std::string& text);  // throws Error(invalid_argument), names the line

// One of several NICs that carry a message together, by index at each end.
struct Rail {
  int own = 0, peer = 0;
  int64_t bandwidth = 0;  // of the slower end, bytes per second

  bool operator==(const Rail&) const = default;
};

// Two NICs that list one IP network, and whose probe failed: the network does not join them.
struct UnreachablePair {
  std::string network, address, other;  // other is empty: the NIC reaches no peer

  auto operator<=>(const UnreachablePair&) const = default;
};

// The network that the native library of an island uses between hosts: the best one that all
// members share.
struct IslandNetwork {
  struct Member {
    std::vector<std::string> devices;  // RDMA ports "mlx5_0", or interfaces "eth0"; may be empty
    int gid = -1;                      // roce: the GID index of all devices; -1: they differ
    std::string interface;             // for the library's own connections over IP; may be empty
  };
  Fabric fabric = Fabric::shm;  // shm or pcie: all members are on one host
  std::vector<Member> members;  // by index in the island
  std::string why;              // for people
  // "not roce: rank 5 on host b has none": what some members have better, and why that is not it;
  // empty if nothing is lost.
  std::string passed_over;
};

// What of a rank's NICs may be a rail.
struct RailCandidates {
  std::vector<int> nics;  // by index, each on another network
  std::string key;        // equal for ranks that have the same rails to anybody
};

// What all ranks agreed on: an immutable value, equal on every rank, shared freely.
class Topology {
 public:
  // Facts by rank, and the NICs that are no rails for each other although their facts say so.
  // Throws Error(invalid_argument) for no ranks and for impossible facts.
  explicit Topology(std::vector<RankInfo> ranks,
                    const std::vector<UnreachablePair>& unreachable = {});

  int size() const { return static_cast<int>(ranks_.size()); }
  const RankInfo& rank(int rank) const { return ranks_[rank]; }

  // Islands: maximal sets of ranks that one engine serves, on one host or, for a native library, on
  // all hosts that share a network; members sorted by rank, islands sorted by first member.
  const std::vector<std::vector<int>>& islands() const { return islands_; }
  int island_of(int rank) const { return island_of_[rank]; }
  int index_in_island(int rank) const { return index_in_island_[rank]; }
  const std::vector<int>& island(int index) const { return islands_[index]; }

  const IslandNetwork& island_network(int island) const { return networks_[island]; }

  // Whether a native library serves the rank's island; the CPU engine serves the others.
  bool native(int rank) const { return ranks_[rank].memory != Memory::host; }
  // Whether messages between them pass through host memory at `rank`'s end, where its buffers are
  // not; and whether those with any other island do.
  bool staged(int rank, int peer) const;
  bool stages(int rank) const { return stages_[rank]; }

  // Hosts likewise.
  const std::vector<std::vector<int>>& hosts() const { return hosts_; }
  int host_of(int rank) const { return host_of_[rank]; }
  bool same_host(int a, int b) const { return host_of_[a] == host_of_[b]; }
  // On how many processors the ranks of a host may run, all together.
  int processors(int host) const { return processors_[host]; }

  // Bytes per second and direction that leave a rank's host, and the rank's fair share of it: the
  // sum of its ranks' distinct bridge NICs, each rank's rails to other islands, else its first one,
  // or plain Ethernet on hosts that share no RDMA network with some other island. 0 if no rank of
  // the host listed any.
  int64_t host_bandwidth(int host) const { return host_bandwidth_[host]; }
  int64_t uplink(int rank) const;
  // The best fabric of which both ranks are on one network: shm on one host, else infiniband, roce,
  // or ethernet, which is taken for granted because RDMA ports carry IP too.
  Fabric fabric_between(int a, int b) const;
  // The NICs that long messages from `a` to `b` use together, the fastest first; empty where one
  // carries them, or RDMA does. From `b` to `a` they are the same in the same order.
  // Without unreachable pairs, even if one NIC remains.
  std::vector<Rail> rails(int a, int b) const;
  // Every pair in both orders, except those with an empty other address.
  const std::set<UnreachablePair>& unreachable() const { return unreachable_; }

  // The same ranks, hosts and islands, as if all links and processors were alike: what is planned
  // over it does not depend on what a run finds of them.
  Topology without_speeds() const;

  // Hash of every fact above: equal on ranks that agree.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  void count_bridge_nics();

  std::vector<RankInfo> ranks_;
  std::vector<std::vector<int>> islands_, hosts_;
  std::vector<int> island_of_, index_in_island_, host_of_;
  std::vector<bool> stages_;
  std::vector<IslandNetwork> networks_;
  std::set<UnreachablePair> unreachable_;
  std::vector<RailCandidates> rail_candidates_;
  std::vector<int> processors_;
  std::vector<int64_t> host_bandwidth_;
  uint64_t fingerprint_ = 0;
};

}  // namespace hetcomm
