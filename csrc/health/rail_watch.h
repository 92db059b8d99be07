#pragma once

#include <map>
#include <string>

#include "base/status.h"

namespace hetcomm {

// The connections that tries have made, which end when a network does. Used by one thread at a
// time, and never destroyed in a child of fork().
class RailWatch {
 public:
  RailWatch();
  ~RailWatch();
  RailWatch(const RailWatch&) = delete;

  void add(int descriptor, int peer, std::string rail);
  // What became of the first rail to `peer` that has failed since; ok while all live. A peer that
  // has closed its end is no failure: others notice whether it left or died.
  Status lost();

 private:
  struct Connection {
    int peer;
    std::string rail;
  };
  int events_ = -1;
  std::map<int, Connection> connections_;  // by descriptor
};

}  // namespace hetcomm
