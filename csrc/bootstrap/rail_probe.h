#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/packing.h"
#include "base/process_descriptor.h"
#include "bootstrap/member.h"
#include "health/rail_watch.h"

namespace hetcomm {

// Set-up probes every rail before anything relies on it. The hosts of a rail may each have a
// private network of the same name, or a firewall between them. A probe is a TCP connection from
// NIC to NIC, which the kernel of the other end completes by itself.

// Listens at the NICs of a rank, so that other ranks can probe and watch them. Used by one thread.
class RailListeners {
 public:
  // At each of ip_nics(), once at each address.
  explicit RailListeners(const RankInfo& mine);

  // By index of the NIC; without NICs where listening failed.
  const std::map<int, uint64_t>& ports() const { return ports_; }

 private:
  std::vector<ProcessDescriptor> descriptors_;
  std::map<int, uint64_t> ports_;
};

// A rail that does not join its ends.
struct FailedRail {
  static constexpr int kAnyPeer = -1;

  int rank = 0, nic = 0;       // the probing rank, and its NIC by index
  int peer = 0, peer_nic = 0;  // kAnyPeer: the NIC failed to many peers and is given up
  std::string why;

  void pack(Packer& packer) const;
  static FailedRail unpack(Unpacker& from);
  // Throws Error(invalid_argument) if the topology has no such NICs.
  void check(const Topology& topology) const;
  UnreachablePair unreachable(const Topology& topology) const;  // checked
};

// Probes the rails and IP paths from this host to all other hosts, once for each pair of hosts and
// direction. A path is probed if an end could use another NIC. The ranks of the host that have the
// same NICs share the pairs. Takes some 2 s at most. `watch` gets the connections of the rails that
// succeed.
std::vector<FailedRail> probe_rails(const Topology& topology, int rank,
                                    const std::vector<Member>& members, const Deadline& deadline,
                                    RailWatch& watch);

// "eth1 (198.18.1.1) of host red0"
std::string end_of_rail(const Topology& topology, int rank, int nic);
RailEnds ends_of_rail(const Topology& topology, int rank, int nic, int peer, int peer_nic);

}  // namespace hetcomm
