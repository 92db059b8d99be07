#pragma once

#include <string>

namespace hetcomm {

// Of an interface's address with or without its prefix length, "10.1.0.5/16" or "fd00::5/64":
// the address alone, "10.1.0.5";
std::string ip_address(const std::string& entry);
// its network, "10.1.0.0/16", empty without a prefix length;
std::string ip_network(const std::string& entry);
// and the RoCE v2 GID that carries it, as sysfs writes GIDs; empty if it is no address.
std::string ip_gid(const std::string& entry);

// Whether a network has room for two hosts only, so that others are reached by routing alone.
bool is_point_to_point(const std::string& network);

}  // namespace hetcomm
