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
  // By interface: IPv4, else global IPv6, with the length of its prefix where known.
  std::map<std::string, std::string> addresses;
  std::set<std::string> default_routes;  // interfaces with an IPv4 default route
  std::vector<std::string> requested;    // take exactly these, in this order; empty: choose

  // This machine, as HETCOMM_SYSFS_ROOT and HETCOMM_SOCKET_IFNAME direct. A recorded tree may hold,
  // beside class/, a file "addresses" with what sysfs itself does not show: lines
  // "eth0 10.1.0.5/16", with the word "default" behind them where the default route goes.
  static Machine current();
};

// The interfaces and ports to use, best first, and one line for each that was looked at.
struct NicChoice {
  std::vector<Nic> taken;
  std::vector<std::string> explanations;
  // RoCE ports that only lack a setting, each with its remedy; they are not counted as RoCE.
  std::vector<std::string> warnings;
};

// Throws Error(invalid_argument) if a requested interface does not exist or cannot be used.
NicChoice choose_nics(const Machine& machine);

// Moves to the front, among the RDMA ports that are as good as the first one, those nearest to the
// device with this PCI bus id: behind one PCI switch, else on its NUMA node. Devices equally near
// to several ports begin with different ones. Without the facts for it nothing is moved.
void prefer_near(const Machine& machine, const std::string& bus, std::vector<Nic>& nics);

}  // namespace hetcomm
