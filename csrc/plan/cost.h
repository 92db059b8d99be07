#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/profile.h"
#include "topology/topology.h"

namespace hetcomm {

// The constants of the model: time = latency + bytes / bandwidth for each step. They are whole
// nanoseconds and bytes per second, so that every rank computes the same value on every machine.
// The constants of islands were fitted to collectives of 2 to 16 ranks, 8 B to 64 MiB, on a machine
// with 2 cores of an AMD EPYC; see docs/tuning.md.
struct CostParameters {
  // Islands whose ranks have a processor each.
  int64_t island_latency = 1'300;  // ns of a collective
  int64_t member_latency = 100;    // ns of a collective, for each member
  int64_t round_latency = 100;     // ns of each further round
  // Islands whose ranks take turns on fewer processors; r = ranks / processors.
  int64_t island_turn_latency = 1'800;  // ns of a collective, times r squared
  int64_t turn_latency = 3'500;         // ns of each further round, times r
  int64_t link_latency_tcp = 30'000;    // ns, one message between hosts over TCP
  int64_t link_latency_rdma = 3'000;    // ns, over InfiniBand or RoCE
  int64_t link_latency_shm = 1'000;     // ns, between ranks of one host
  // ns between two messages to other hosts of a rank with a processor of its own; assumed.
  int64_t message_gap_tcp = 5'000;
  int64_t message_gap_rdma = 300;
  int64_t memory_bandwidth = 27'000'000'000;  // B/s that one core reads or writes
  int64_t cache_bandwidth = 90'000'000'000;   // B/s that one core reads or writes in its caches
  int64_t cache_size = 8 << 20;               // bytes of caches, for each core
  // B/s of elements that one core encodes or decodes beside TCP and the program's own work: a fifth
  // of the rate at which a core without other work encodes bfloat16.
  int64_t codec_bandwidth = 600'000'000;
  int64_t encoded_share = 0;    // bytes of 1,000 bytes of encoded elements; 0: Codec::expected()
  int64_t step_overhead = 200;  // ns to issue any step
  int64_t assumed_bandwidth = 125'000'000;  // B/s and direction of a host that reports no NIC

  int64_t copy_latency = 10'000;                 // ns, a copy between device memory and staging
  int64_t copy_bandwidth = 16'000'000'000;       // B/s and direction of a device's copy engines
  int64_t kernel_latency = 10'000;               // ns, a step inside a device
  int64_t device_bandwidth = 1'000'000'000'000;  // B/s that a device reads or writes
  int64_t ccl_latency = 15'000;                  // ns, one collective of a native library
  int64_t ccl_bandwidth = 100'000'000'000;  // B/s of each member, inside a host; of direct messages

  // Plans of more ranks are not replayed; see estimate().
  int64_t replayed_ranks = 32;

  // Measured values replace the constants; null if nothing was measured.
  std::shared_ptr<const Profile> profile;

  CostParameters() = default;
  explicit CostParameters(std::shared_ptr<const Profile> measured);
};

// ns to move bytes * factor at bandwidth * divisor bytes per second, rounded up.
int64_t duration(__int128 bytes, int64_t bandwidth, int64_t factor = 1, int64_t divisor = 1);

// value * numerator / denominator without overflow in between, rounded down.
inline int64_t scaled(int64_t value, int64_t numerator, int64_t denominator) {
  return static_cast<int64_t>(static_cast<__int128>(value) * numerator / denominator);
}

// The predicted cost of a set of plans, replayed over the topology. Ranks of a host share its NICs
// in each direction, and its cores if there are fewer cores than ranks. Hosts of a zone share its
// uplink. The steps of a rank share a
// core, and its messages take turns. A device has a copy engine in each direction to host memory
// and to other devices of the host. Beside these engines it does its collectives, copies and
// reductions one at a time.
struct Cost {
  int64_t total = 0;         // ns until the last rank is done
  int64_t island = 0;        // ns the busiest rank spends in island steps, copies and reductions
  int64_t staging = 0;       // ns the busiest copy engine is occupied
  int64_t bridge = 0;        // ns that messages occupy the busiest direction of NICs or uplinks
  int64_t bridge_bytes = 0;  // bytes that the busiest host sends to other hosts
};

// When each step of each rank starts and ends, in ns. A send ends with its recv.
struct Interval {
  int64_t start = 0;
  int64_t end = 0;
};
using Timeline = std::vector<std::vector<Interval>>;

// `plans`: one for each rank of the topology, in rank order. Throws Error(invalid_argument) for
// plans that deadlock or are malformed (check() says more), and for a profile of another topology.
// Fills `timeline` if it is not null.
Cost predict(const Topology& topology, const std::vector<Plan>& plans,
             const CostParameters& parameters = {}, Timeline* timeline = nullptr);

}  // namespace hetcomm
