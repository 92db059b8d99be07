#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "transport/ucx/source_filter.h"

namespace hetcomm {

// The sockets at which a UCX worker listens for TCP. UCX trusts whoever connects, so the kernel
// drops what comes from addresses of no peer. Owned by a transport. Not thread-safe.
class UcxListeners {
 public:
  // Comes before the worker is made, to tell its sockets from others of the process.
  UcxListeners();
  // The worker with this address exists now. From here on nobody can connect, and whoever already
  // has is cut off. `expected`: the worker has a listener.
  void find(std::string_view worker_address, bool expected);
  // The addresses from which this process may connect, for admit() at a peer; empty without a
  // listener.
  std::vector<std::string> own_sources() const;
  // A peer may connect from these sources of SourceFilter, separated by commas, once apply() has
  // returned. They stay admitted. Throws Error(invalid_argument).
  void admit(std::string_view sources);
  void apply();
  // Logs once if the kernel has dropped packets.
  void look();

 private:
  struct Listener {
    int descriptor;
    uint16_t port;  // in the order of the network
    std::string address;
  };

  static bool lives(const Listener& listener);
  bool attach(const Listener& listener, bool& exact) const;
  void cut_off_strangers() const;

  std::map<uint64_t, int> before_;  // sockets, by inode
  std::vector<Listener> listeners_;
  SourceFilter admitted_;
  std::optional<SourceFilter> applied_;
  bool changed_ = false;
  Clock::time_point looks_at_ = Clock::now();
  bool warned_ = false;
};

}  // namespace hetcomm
