#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "topology/topology.h"

namespace hetcomm {

// The sources that probing reads: those of the machine it runs on, or of a recorded one. A plain
// value; filled by current(), read by choose_nics().
struct Machine {
  std::string sysfs = "/sys";
  // Directory of the uverbsN nodes, without which an RDMA port cannot be opened; empty: not
  // checked.
  std::string verbs;
  std::map<std::string, std::string> addresses;  // by interface: IPv4, else global IPv6
  std::set<std::string> default_routes;          // interfaces with an IPv4 default route
  std::vector<std::string> requested;            // take exactly these, in this order; empty: choose

  // This machine, as HETCOMM_SYSFS_ROOT and HETCOMM_SOCKET_IFNAME direct.
  static Machine current();
};

// The interfaces and ports to use, best first, and one line for each that was looked at.
struct NicChoice {
  std::vector<Nic> taken;
  std::vector<std::string> explanations;
};

// Throws Error(invalid_argument) if a requested interface does not exist or cannot be used.
NicChoice choose_nics(const Machine& machine);

}  // namespace hetcomm
