#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plan/plan.h"
#include "topology/topology.h"

namespace hetcomm {

// The size of an island of the CPU engine: its members, and the ranks and processors of its host.
struct IslandSize {
  int64_t members = 1;
  int64_t ranks = 1;
  int64_t cores = 1;

  bool operator==(const IslandSize&) const = default;
};

// Measured times by size. Between the sizes and beyond the last one they are linear.
class Curve {
 public:
  void add(int64_t bytes, int64_t nanoseconds);  // sizes rise, times do not fall
  int64_t at(int64_t bytes) const;
  const std::vector<std::pair<int64_t, int64_t>>& points() const { return points_; }

 private:
  std::vector<std::pair<int64_t, int64_t>> points_;  // bytes, ns
};

// The measurements of `hetcomm tune`, in place of the cost model's constants: an immutable value,
// equal on all ranks. A profile holds for the measured hosts, for hosts like them, and for any part
// of these.
struct Profile {
  struct Host {
    std::string name;
    int64_t ranks = 1;
    int64_t cores = 1;
    std::string nics;       // reported rates: "ethernet:125000000,ethernet:250000000" or "none"
    int64_t bandwidth = 0;  // B/s and direction between hosts, both directions busy; 0: one host
  };
  // The collectives of an island alone, by the bytes of their largest buffer.
  struct Island {
    IslandSize size;
    std::map<Collective, Curve> curves;  // one for each of profiled_collectives()
  };
  std::vector<Host> hosts;
  std::vector<Island> islands;
  std::map<Fabric, Curve> messages;  // between two hosts, in both directions at once
  int64_t memory_bandwidth = 0;      // B/s that one processor reads or writes
  int64_t step_overhead = 0;         // ns

  // The most similar measured island. An equal number of processors counts most. Null without any.
  const Island* nearest(const IslandSize& size) const;
  // For each host of the topology a measured host like it, by index. Each measured host is used
  // once. Throws Error(invalid_argument) if some host of the topology finds none.
  std::vector<int> match_hosts(const Topology& topology) const;

  std::string text() const;    // for parse_profile()
  std::string digest() const;  // hash of the text
};

const std::vector<Collective>& profiled_collectives();
// The facts of a host of the topology, without a measured bandwidth.
Profile::Host profile_host(const Topology& topology, int host);

// Throws Error(invalid_argument) that names the line. source: the origin of the text, for messages.
Profile parse_profile(const std::string& text, const std::string& source);
// The file that HETCOMM_PROFILE names; null if it is not set.
std::shared_ptr<const Profile> profile_setting();

}  // namespace hetcomm
