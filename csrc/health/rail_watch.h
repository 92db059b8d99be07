#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/events.h"
#include "base/process_descriptor.h"

namespace hetcomm {

// The two NICs of a rail, by their network and addresses. `words` name both: "eth1 (198.18.1.1) of
// host red0 does not reach eth1 (198.18.1.2) of host blue0". Of a lost rail, `left` says the
// bandwidth: "1 Gbit/s left of 2 Gbit/s".
struct RailEnds {
  std::string network, own, other, words, left = {};

  bool joins_same_nics(const RailEnds& rail) const {
    return network == rail.network &&
           ((own == rail.own && other == rail.other) || (own == rail.other && other == rail.own));
  }
};

// A stripe of this rank's link to a peer.
struct OwnStripe {
  int peer;
  size_t stripe;  // the first is 0
  RailEnds rail;
  int64_t bandwidth;                  // bytes per second
  Clock::time_point lost_since = {};  // by the transport
};

// Keeps the connections of successful probes. A connection ends when its network fails. Used by one
// thread at a time.
class RailWatch {
 public:
  void add(ProcessDescriptor descriptor, RailEnds rail);
  struct Failure {
    RailEnds rail;
    std::string why;
  };
  // The next failure of a rail's network. A peer that closed its end is no failure, because the
  // control connections tell whether the peer left or died.
  std::optional<Failure> next_failure();

 private:
  struct Connection {
    ProcessDescriptor descriptor;
    RailEnds rail;
  };
  const Descriptor events_ = make_epoll();
  std::map<int, Connection> connections_;  // by number of the descriptor
};

}  // namespace hetcomm
