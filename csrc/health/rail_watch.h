#pragma once

#include <map>
#include <string>

#include "base/events.h"
#include "base/process_descriptor.h"

namespace hetcomm {

// Keeps the connections of successful probes. A connection ends when its network fails. Used by one
// thread at a time.
class RailWatch {
 public:
  void add(ProcessDescriptor descriptor, int peer, std::string rail);
  // The next failure of a rail's network; ok if there is none. A peer that closed its end is no
  // failure, because the control connections tell whether the peer left or died.
  Status next_failure();

 private:
  struct Connection {
    ProcessDescriptor descriptor;
    int peer;
    std::string rail;
  };
  const Descriptor events_ = make_epoll();
  std::map<int, Connection> connections_;  // by number of the descriptor
};

}  // namespace hetcomm
