#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "topology/topology.h"

namespace hetcomm {

// The record of one rank that all ranks read in the first stage of set-up.
struct Member {
  RankInfo info;
  std::string table;
  bool deterministic = false;
  std::string codec;                           // of links between hosts
  std::string profile;                         // digest of its profile; empty without one
  uint32_t first_sender = 0;                   // see SenderNumbers
  std::string local_address, network_address;  // of transports, for its own and for other hosts
  std::vector<std::string> shared_memory;      // see Transport::shared_memory()
  std::string wake_address, contact;
  std::string word;                    // random, new for each set-up; see make_group_key()
  std::map<int, uint64_t> rail_ports;  // of its rail listeners, by index of the NIC

  std::string pack() const;
  // Throws Error(invalid_argument) on a record of another version, or on other bytes.
  static Member unpack(const std::string& bytes);
};

}  // namespace hetcomm
