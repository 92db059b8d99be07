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

// Where the CPU engine carries an island: how many members it has, and how many ranks of its host
// share how many processors.
struct IslandSize {
  int64_t members = 1;
  int64_t ranks = 1;
  int64_t cores = 1;

  bool operator==(const IslandSize&) const = default;
};

// Measured times by size, linear between the sizes and beyond the last, in whole numbers.
class Curve {
 public:
  void add(int64_t bytes, int64_t nanoseconds);  // sizes rise, times do not fall
  int64_t at(int64_t bytes) const;
  const std::vector<std::pair<int64_t, int64_t>>& points() const { return points_; }

 private:
  std::vector<std::pair<int64_t, int64_t>> points_;  // bytes, ns
};

// What `hetcomm tune` has measured: an immutable value, equal on all ranks, which the cost model
// uses instead of its constants. It holds for the hosts it was measured on, or others like them,
// and for any part of them.
struct Profile {
  struct Host {
    std::string name;
    int64_t ranks = 1;
    int64_t cores = 1;
    std::string nics;       // what they report: "ethernet:125000000,ethernet:250000000" or "none"
    int64_t bandwidth = 0;  // B/s and direction to other hosts, both directions busy; 0: no others
  };
  // Of the collectives of an island alone, by the bytes of their largest buffer.
  struct Island {
    IslandSize size;
    std::map<Collective, Curve> curves;  // profiled_collectives(), each
  };
  std::vector<Host> hosts;
  std::vector<Island> islands;
  std::map<Fabric, Curve> messages;  // of a host to another and back at the same time
  int64_t memory_bandwidth = 0;      // B/s that one processor reads or writes
  int64_t step_overhead = 0;         // ns

  // The measured island most like this one, on as many processors if there is one; null if there is
  // none.
  const Island* nearest(const IslandSize& size) const;
  // For each host of the topology the one here that stands for it. Throws Error(invalid_argument)
  // where the profile was measured on something else.
  std::vector<int> places(const Topology& topology) const;

  // What parse_profile() reads back; its hash tells profiles apart.
  std::string text() const;
  std::string digest() const;
};

const std::vector<Collective>& profiled_collectives();
// The facts of a host of the topology, with no bandwidth measured.
Profile::Host profile_host(const Topology& topology, int host);

// Throws Error(invalid_argument) that names the line. source: where the text is from, for messages.
Profile parse_profile(const std::string& text, const std::string& source);
// The file that HETCOMM_PROFILE names; null if it is not set.
std::shared_ptr<const Profile> profile_setting();

}  // namespace hetcomm
