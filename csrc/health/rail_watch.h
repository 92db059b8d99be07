#pragma once

#include <map>
#include <string>

#include "base/descriptor.h"
#include "base/status.h"

namespace hetcomm {

// Keeps the connections of the probes that succeeded. They end when their network fails. Used by
// one thread at a time, and never destroyed in a child of fork().
class RailWatch {
 public:
  RailWatch();
  ~RailWatch();
  RailWatch(const RailWatch&) = delete;

  void add(Descriptor descriptor, int peer, std::string rail);
  // The failure of the next rail whose network failed; ok if there is none. A peer that closed its
  // end is no failure: the control connections tell whether it left or died.
  Status next_failure();

 private:
  struct Connection {
    Descriptor descriptor;
    int peer;
    std::string rail;
  };
  Descriptor events_;
  std::map<int, Connection> connections_;  // by number of the descriptor
};

}  // namespace hetcomm
