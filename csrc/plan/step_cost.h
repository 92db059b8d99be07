#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "plan/cost.h"

namespace hetcomm {

// The price of one step: which part of a rank or host it occupies, and for how long. Refers to the
// topology and the parameters. Any thread may use it.
class StepCost {
 public:
  // Throws Error(invalid_argument) for a bandwidth below 1, and for a profile of another topology.
  StepCost(const Topology& topology, const CostParameters& parameters);

  // The parts of a rank that take one step at a time.
  enum Part : uint8_t {
    core,
    device,  // device memory alone: copies, reductions, native collectives
    to_staging,
    from_staging,  // copy engines between device memory and staging
    to_device,
    from_device,  // messages with devices of the same host
    kParts
  };
  struct Use {
    Part part;
    int64_t length;   // ns
    int64_t latency;  // ns more until the step is complete
  };

  // A step of one rank alone.
  Use local(const Step& step, int rank) const;
  // ns of an island step, by what one member has to move.
  int64_t island(const Step& step, int rank) const;

  // Uplinks that bytes leave or come in by: the NICs of host i are uplink i, and zones with a known
  // rate have the next numbers.
  int uplinks() const { return static_cast<int>(rates_.size()); }
  // Calls use(uplink) for those of a host that messages with another host take, its NICs first.
  template <typename Use>
  void each_uplink(int host, int other, const Use& use) const {
    use(host);
    if (zones_.empty()) return;
    for (int level = topology_.level_between(host, other); level < std::ssize(zones_); ++level) {
      if (const int zone = zones_[level][host]; zone >= 0) use(zone);
    }
  }
  // Of the zone around a host; -1: no known rate.
  int uplink_of_zone(int level, int host) const { return zones_[level][host]; }
  // ns of so many bytes at an uplink.
  int64_t at_uplink(int uplink, int64_t bytes) const;

  // ns in which an island step of one member occupies an uplink around it. None in an island on
  // one host. Members behind an uplink add up.
  struct UplinkUse {
    int uplink;
    int64_t out = 0, in = 0;
  };
  std::vector<UplinkUse> island_uplinks(const Step& step, int rank) const;

  // A message. Between hosts it occupies a direction of a NIC at each end; else a part of each
  // rank.
  struct Message {
    bool between_hosts;
    Part out_part, in_part;  // inside a host
    int64_t out, in;         // ns at the sender and at the receiver
    int64_t latency;         // ns more until it is complete
    int64_t bytes;
  };
  Message message(int from, int to, const Range& target) const;
  Message message(const Step& step, int rank) const;  // of this rank
  // ns of any step of the rank, without waits.
  int64_t busy(const Step& step, int rank) const;
  // ns between the begins of two messages of a rank with a peer on another host.
  int64_t gap(int rank, int peer) const;
  // ns of a message of so many bytes from a host to the next: the mean of all hosts.
  int64_t mean_hop(int64_t bytes) const;
  int64_t rate(int uplink) const { return rates_[uplink]; }  // B/s and direction
  int64_t overhead() const { return parameters_.step_overhead; }

 private:
  int64_t core_time(int rank, int64_t bytes) const;
  int64_t bandwidth(int rank) const;
  int64_t link_latency(int from, int to, int64_t bytes) const;
  int64_t message_bytes(const Range& range) const;
  std::pair<int64_t, int64_t> sharing(int rank) const;

  const Topology& topology_;
  const CostParameters& parameters_;
  std::vector<int64_t> rates_;                   // B/s and direction, by uplink
  std::vector<std::vector<int>> zones_;          // uplinks by level and host; -1: no known rate
  std::vector<std::map<int, int64_t>> crossed_;  // members behind each uplink, by native island
  std::vector<int64_t> island_rates_;            // B/s of each member of a native island, by island
};

}  // namespace hetcomm
