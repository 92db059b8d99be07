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

// The memory of a rank's buffers.
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
  // The network of the port: an InfiniBand subnet prefix "fe80:0000:0000:0000", else an IP network
  // "10.1.0.0/16". Empty if unknown.
  std::string subnet;
  int gid = -1;  // roce: index of the RoCE v2 GID with the address; -1: none

  bool operator==(const Nic&) const = default;
};

// The facts of one rank, which all ranks exchange at set-up. Plans may depend on these facts and on
// nothing else.
struct RankInfo {
  std::string host;       // identity of the memory system, see host_identity()
  std::string host_name;  // for people
  std::string machine;    // with the host's processors: its boot id; empty: the host has its own
  std::string vendor = "cpu";
  int cores = 1;                // processors this rank may run on
  std::vector<int> processors;  // their numbers, ascending; empty: any of its host
  Memory memory = Memory::host;
  // Fabrics over which the transport sends and receives device memory directly. Over shm the peer
  // needs the same vendor and shm in its own `direct`.
  std::set<Fabric> direct;
  int64_t direct_bytes = 0;                      // shorter messages inside a host are staged
  bool kernels = false;                          // its device has kernels: it reduces and encodes
  std::string device;                            // for people: "NVIDIA H200 0000:1b:00.0"
  std::string ccl;                               // its native library: "NCCL 2.28.3"
  bool float8 = false;                           // this library reduces 8-bit floats on the device
  bool rails = false;                            // its transport can use several NICs together
  std::string island;                            // label of the island, mostly empty
  std::string zone;                              // zones of the host, "paris@1gbit/rack3"
  std::vector<Nic> nics;                         // the usable NICs, best first
  std::vector<std::string> warnings;             // ports that only lack a setting, and the remedy
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

// The NICs that carry IP packets between two ranks, by index at each end; -1 for a rank without an
// IP address. common: both are on one network. Routers join any other pair.
struct IpPath {
  int own = -1, peer = -1;
  bool common = false;

  bool operator==(const IpPath&) const = default;
};

// Two NICs on one IP network by their facts, but the probe between them failed.
struct UnreachablePair {
  std::string network, address, other;  // empty `other`: the NIC reaches no peer

  auto operator<=>(const UnreachablePair&) const = default;
};

// The network of an island between hosts: the best one that all members share.
struct IslandNetwork {
  struct Member {
    std::vector<std::string> devices;  // RDMA ports "mlx5_0", or interfaces "eth0"; may be empty
    int gid = -1;                      // roce: the GID index of all devices; -1: they differ
    std::string interface;             // for the library's own connections over IP; may be empty
  };
  // On one host: pcie for an island of a native library, shm for any other.
  Fabric fabric = Fabric::shm;
  std::vector<Member> members;  // by index in the island
  std::string why;              // for people
  // Better fabrics that only some members have: "not roce: rank 5 on host b has none". Empty
  // without such a fabric.
  std::string passed_over;
};

// The NICs of a rank that may be rails.
struct RailCandidates {
  std::vector<int> nics;  // indices, each NIC on another network
  std::string key;        // ranks with equal keys have the same rails to every other rank
};

// Hosts behind a shared uplink, by label: a rack, a room, a site. Zones nest, each level in the one
// before.
struct Zone {
  std::string name;        // "paris/rack3"
  int64_t uplink = 0;      // bytes per second and direction with hosts outside; 0: no known limit
  std::vector<int> hosts;  // ascending
};

// The facts of all ranks and what follows from them: an immutable value, equal on every rank. Any
// thread may read it.
class Topology {
 public:
  // `ranks`: facts by rank. `unreachable`: pairs of NICs that are no rails despite their facts.
  // Throws Error(invalid_argument) for no ranks and for impossible facts.
  explicit Topology(std::vector<RankInfo> ranks,
                    const std::vector<UnreachablePair>& unreachable = {});

  int size() const { return static_cast<int>(ranks_.size()); }
  const RankInfo& rank(int rank) const { return ranks_[rank]; }

  // Members are sorted by rank, islands by first member; see find_islands().
  const std::vector<std::vector<int>>& islands() const { return islands_; }
  int island_of(int rank) const { return island_of_[rank]; }
  int index_in_island(int rank) const { return index_in_island_[rank]; }
  const std::vector<int>& island(int index) const { return islands_[index]; }

  const IslandNetwork& island_network(int island) const { return networks_[island]; }

  // Whether a native library serves the rank's island. The CPU engine serves any other island.
  bool native(int rank) const { return ranks_[rank].memory != Memory::host; }
  // Whether messages with `peer` pass through host staging at the end of `rank`: all messages, or a
  // message of so many bytes.
  bool staged(int rank, int peer) const;
  bool staged(int rank, int peer, int64_t bytes) const;
  // Whether messages of so many bytes of `rank` with any other island pass through host staging.
  bool stages_between_islands(int rank, int64_t bytes) const { return bytes < direct_from_[rank]; }

  // Ranks are sorted, hosts are sorted by first rank.
  const std::vector<std::vector<int>>& hosts() const { return hosts_; }
  int host_of(int rank) const { return host_of_[rank]; }
  bool same_host(int a, int b) const { return host_of_[a] == host_of_[b]; }
  // The number of processors on which the ranks of a host may run, all together.
  int processors(int host) const { return processors_[host]; }

  // The zones of each level, the widest level first, by first host; none without labels.
  const std::vector<std::vector<Zone>>& zones() const { return zones_; }
  int zone_of(int level, int host) const { return zone_of_[level][host]; }
  // Of its first member: where an island spans zones, its others are elsewhere.
  int zone_of_island(int level, int island) const {
    return zone_of(level, host_of(islands_[island][0]));
  }
  // The widest level whose zones tell the hosts apart; the number of levels if none does.
  int level_between(int host, int other) const;

  // The ranks of all hosts on the machine of a host, and the processors on which they may run.
  struct Crowd {
    int ranks = 0, processors = 0;
  };
  const Crowd& crowd(int host) const { return crowds_[crowd_of_[host]]; }

  // Bytes per second and direction between a host and other hosts: the sum over the distinct NICs
  // that carry messages of its ranks to other islands. These are a rank's rails, or the one NIC of
  // find_bridge_nics() or of ip_path(). 0 if the ranks listed no NICs.
  int64_t host_bandwidth(int host) const { return host_bandwidth_[host]; }
  // The rank's fair share of the bandwidth of its host.
  int64_t uplink(int rank) const;
  // The best fabric with a network of both ranks: shm on one host, else infiniband, roce, ethernet.
  // Ethernet needs no common network: IP reaches every host, over RDMA ports too.
  Fabric fabric_between(int a, int b) const;
  // The NICs that long messages between two ranks use together, the fastest first; in the same
  // order from `b` to `a`. Empty where one NIC carries messages, or RDMA does. Unreachable pairs
  // are left out, even if one rail remains.
  std::vector<Rail> rails(int a, int b) const;
  // Where rails() is empty, and for control connections; the reverse from `b` to `a`.
  IpPath ip_path(int a, int b) const;
  // Every pair in both orders, unless `other` is empty.
  const std::set<UnreachablePair>& unreachable() const { return unreachable_; }

  // The same layout, as if all links and processors were alike. Plans then depend on nothing that
  // differs from run to run.
  Topology without_speeds() const;

  // Hash of all facts: equal on ranks that agree.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  // The bytes from which messages with `peer` are not staged at the end of `rank`.
  int64_t direct_from(int rank, int peer) const;
  void count_bridge_nics();
  void count_crowds();

  std::vector<RankInfo> ranks_;
  std::vector<std::vector<int>> islands_, hosts_;
  std::vector<int> island_of_, index_in_island_, host_of_;
  std::vector<std::vector<Zone>> zones_;
  std::vector<std::vector<int>> zone_of_;  // by level and host
  // By rank: the bytes from which no message with another island is staged.
  std::vector<int64_t> direct_from_;
  std::vector<IslandNetwork> networks_;
  std::set<UnreachablePair> unreachable_;
  std::set<std::string> ambiguous_;  // see ambiguous_networks()
  std::vector<RailCandidates> rail_candidates_;
  std::vector<int> processors_;
  std::vector<Crowd> crowds_;
  std::vector<int> crowd_of_;  // by host
  std::vector<int64_t> host_bandwidth_;
  uint64_t fingerprint_ = 0;
};

}  // namespace hetcomm
