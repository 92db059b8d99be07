#pragma once

#include <string>
#include <vector>

#include "topology/machine.h"

namespace hetcomm {

// How good an interface or port is as a way to other hosts, best first.
enum class Standing {
  network,     // a network between hosts
  local,       // a container bridge or a tunnel: taken where there is no network
  loopback,    // taken where there is nothing else
  on_request,  // not made for traffic: taken only if requested by name
  unusable,    // cannot be used at all
};

// An interface or port that was looked at, and what speaks against it.
struct Candidate {
  Nic nic;
  Standing standing = Standing::network;
  std::string reason;  // empty if nothing speaks against it
  std::string remedy;  // what would make an unusable one usable, if a setting is all it lacks
};

// Speed of interfaces whose driver reports none, as virtual ones do (bytes per second).
constexpr int64_t assumed_bandwidth = 1'250'000'000;
constexpr int64_t assumed_wireless_bandwidth = 37'500'000;

// The ports of class/infiniband: fabric infiniband or roce.
std::vector<Candidate> find_rdma_ports(const Machine& machine);

// The interfaces of class/net: fabric ethernet. One that a usable port already stands for is
// unusable on its own.
std::vector<Candidate> find_interfaces(const Machine& machine, const std::vector<Candidate>& ports);

// Sets the bandwidth if the driver's figure (bits per second) makes sense, else the assumed one.
void set_bandwidth(Nic& nic, double bits_per_second, int64_t assumed);
// Its address, otherwise empty; and with the length of its prefix, where known.
std::string address_of(const Machine& machine, const std::string& interface);
std::string address_entry(const Machine& machine, const std::string& interface);

}  // namespace hetcomm
