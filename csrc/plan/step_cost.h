#pragma once

#include <cstdint>
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

  // ns in which an island step of one member occupies the NICs of its host; 0 in an island of one
  // host. Members of a host add up.
  struct NicUse {
    int64_t out = 0, in = 0;
  };
  NicUse island_nics(const Step& step, int rank) const;

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
  // B/s and direction of the NICs of a host.
  int64_t host_bandwidth(int host) const { return bandwidths_[host]; }
  int64_t overhead() const { return parameters_.step_overhead; }

 private:
  int64_t core_time(int rank, int64_t bytes) const;
  int64_t bandwidth(int rank) const;
  int64_t link_latency(int from, int to, int64_t bytes) const;
  int64_t message_bytes(const Range& range) const;
  std::pair<int64_t, int64_t> sharing(int rank) const;

  const Topology& topology_;
  const CostParameters& parameters_;
  std::vector<int64_t> bandwidths_;    // B/s and direction, by host
  std::vector<int64_t> island_rates_;  // B/s of each member of a native island, by island
};

}  // namespace hetcomm
