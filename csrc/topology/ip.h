#pragma once

#include <string>

namespace hetcomm {

// Parts of an interface's address entry, such as "10.1.0.5/16" or "fd00::5/64". The prefix length
// may be missing.

// The address, "10.1.0.5".
std::string ip_address(const std::string& entry);
// The network, "10.1.0.0/16". Empty without a prefix length.
std::string ip_network(const std::string& entry);
// The RoCE v2 GID that carries the address, in the spelling of sysfs. Empty without an address.
std::string ip_gid(const std::string& entry);

// Whether a network has room for two hosts only. Other hosts are then reached by routing.
bool is_point_to_point(const std::string& network);

}  // namespace hetcomm
