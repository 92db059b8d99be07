#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "topology/topology.h"

namespace hetcomm {

// The sources that probing reads: those of this machine, or of a recorded one. A plain value.
struct Machine {
  std::string sysfs = "/sys";
  // Directory of the uverbsN nodes. Without its node an RDMA port cannot be opened. Empty: nodes
  // are not checked.
  std::string verbs;
  // By interface: the IPv4 address, else a global IPv6 address, with its prefix length if known.
  std::map<std::string, std::string> addresses;
  std::set<std::string> default_routes;  // interfaces whose address has a default route
  std::vector<std::string> requested;    // take exactly these, in this order; empty: choose

  // This machine. HETCOMM_SYSFS_ROOT names a recorded tree instead of /sys, HETCOMM_SOCKET_IFNAME
  // (a comma-separated list of names) the requested interfaces. A recorded tree may hold a file
  // "addresses" beside class/, because sysfs shows no addresses. Its lines are
  // "eth0 10.1.0.5/16", or "eth0 10.1.0.5/16 default" for an interface with the default route.
  static Machine current();
};

struct NicChoice {
  std::vector<Nic> taken;                 // best first
  std::vector<std::string> explanations;  // why each interface or port was taken or left out
  // RoCE ports that only lack a setting, each with its remedy. They are not counted as RoCE.
  std::vector<std::string> warnings;
};

// Chooses the usable interfaces and RDMA ports. A usable interface is up and has an address. An
// InfiniBand port needs no address, a RoCE port needs a RoCE v2 GID that carries it. Container
// bridges, tunnels and the loopback are taken only where nothing better exists. RDMA comes first,
// then the higher rate, the default route, and the order of names. Throws Error(invalid_argument)
// if a requested interface does not exist or cannot be used.
NicChoice choose_nics(const Machine& machine);

// Reorders the RDMA ports of the first port's fabric and rate. The ports nearest to the device with
// this PCI bus id, "0000:1b:00.0", come first: on one NUMA node, of these behind one PCI switch.
// Devices equally near to several ports begin with different ports. Without the facts in sysfs the
// order stays.
void prefer_near(const Machine& machine, const std::string& bus, std::vector<Nic>& nics);

}  // namespace hetcomm
