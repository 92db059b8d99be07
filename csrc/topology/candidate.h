#pragma once

#include <string>
#include <vector>

#include "topology/machine.h"

namespace hetcomm {

// How well an interface or port leads to other hosts, best first.
enum class Standing {
  network,     // a network between hosts
  local,       // a container bridge or a tunnel: taken only without a network
  loopback,    // taken only without anything else
  on_request,  // not made for traffic: taken only if requested by name
  unusable,    // never taken
};

// An interface or port that may be taken.
struct Candidate {
  Nic nic;
  Standing standing = Standing::network;
  std::string reason;  // why its standing is not network; empty if it is
  std::string remedy;  // the setting that would make an unusable port usable; empty if none would
};

// Assumed rates of interfaces whose driver reports none, such as virtual ones (bytes per second).
constexpr int64_t assumed_bandwidth = 1'250'000'000;
constexpr int64_t assumed_wireless_bandwidth = 37'500'000;

// The ports of class/infiniband: fabric infiniband or roce.
std::vector<Candidate> find_rdma_ports(const Machine& machine);

// The interfaces of class/net: fabric ethernet. The interface of a usable port is unusable: its
// port stands for it.
std::vector<Candidate> find_interfaces(const Machine& machine, const std::vector<Candidate>& ports);

// Sets the bandwidth to the driver's figure (bits per second) if it is plausible, else to the
// assumed one.
void set_bandwidth(Nic& nic, double bits_per_second, int64_t assumed);
// The address of an interface, and the address with its prefix length if known; empty if none.
std::string address_of(const Machine& machine, const std::string& interface);
std::string address_entry(const Machine& machine, const std::string& interface);

}  // namespace hetcomm
