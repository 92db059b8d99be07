#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fork.h"
#include "base/packing.h"
#include "bootstrap/member.h"
#include "health/rail_watch.h"

namespace hetcomm {

// Whether the networks of rails join the hosts that list them, tried before anything relies on it:
// hosts may have one private network each by the same name, or a firewall between. A try is a TCP
// connection from NIC to NIC, which the kernel of the other end completes by itself.

// What lets others try a rank's NICs and watch over them, while it lives. Used by one thread.
class RailListeners {
 public:
  RailListeners() = default;
  // At each NIC that may be a rail; none where there are fewer than two.
  explicit RailListeners(const RankInfo& mine);
  ~RailListeners() { close(); }
  RailListeners(const RailListeners&) = delete;

  // By index of the NIC. One at which a listener cannot be made has none.
  const std::map<int, uint64_t>& ports() const { return ports_; }
  void close();

 private:
  const ProcessMark mark_;
  std::vector<int> descriptors_;
  std::map<int, uint64_t> ports_;
};

// A rail that does not join its ends.
struct FailedRail {
  static constexpr int kMany = -1;

  int rank = 0, nic = 0;       // that tried, and its NIC by index
  int peer = 0, peer_nic = 0;  // kMany: so many failed that the NIC is given up
  std::string why;

  void pack(Packer& packer) const;
  static FailedRail unpack(Unpacker& from);
  Unjoined unjoined(const Topology& topology) const;
};

// Tries the rails of a rank's host to all others, shared out among those of its ranks that have the
// same NICs: each pair of hosts is tried once in either direction. Bounded by some 2 s. Those that
// live are given to `watch`.
std::vector<FailedRail> try_rails(const Topology& topology, int rank,
                                  const std::vector<Member>& members, const Deadline& deadline,
                                  RailWatch& watch);

// "eth1 (198.18.1.1) of host red0"
std::string end_of_rail(const Topology& topology, int rank, int nic);

}  // namespace hetcomm
