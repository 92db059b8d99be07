#pragma once

#include <string>
#include <vector>

#include "bootstrap/rail_probe.h"

namespace hetcomm {

// What a rank publishes in the second stage, once the topology is known. The other ranks use it to
// connect.
struct ConnectInfo {
  std::string island_key;  // from the first member of an island, see Engine::make_key
  std::string addresses;   // of transports that only some links need; mostly empty
  std::vector<FailedRail> failed_rails;

  std::string pack() const;
  static ConnectInfo unpack(const std::string& bytes);  // throws Error(invalid_argument)
};

}  // namespace hetcomm
