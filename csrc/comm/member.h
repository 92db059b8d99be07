#pragma once

#include <cstdint>
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
  std::string local_address, network_address;  // of links, from the same host and from others
  std::string wake_address, contact, secret;

  std::string pack() const;
  // Throws Error(invalid_argument) when it was packed by another version, or is no record at all.
  static Member unpack(const std::string& bytes);
};

}  // namespace hetcomm
