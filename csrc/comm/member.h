#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "topology/topology.h"

namespace hetcomm {

// What a rank publishes in the store when a communicator is made.
struct Member {
  RankInfo info;
  std::string table;
  bool deterministic = false;
  std::string profile;  // digest of its profile of speeds, empty without one
  uint32_t number = 0;
  std::string local_address, network_address;  // of transports, for its host and for others
  std::string wake_address, contact, secret;
  std::map<int, uint64_t> rail_ports;  // on which it can be tried over its NICs, by index

  std::string pack() const;
  // Throws Error(invalid_argument) when it was packed by another version, or is no record at all.
  static Member unpack(const std::string& bytes);
};

}  // namespace hetcomm
