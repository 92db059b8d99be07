#include "plan/step_cost.h"

#include <algorithm>

#include "base/status.h"
#include "plan/island_cost.h"

namespace hetcomm {
namespace {

// Bytes that one member sends or receives in an island step of a native library. Algorithms are
// taken as optimal: rings for reductions and for copies to all.
int64_t ccl_bytes(const Step& step, int rank, int64_t members) {
  int64_t shared = 0, out = 0, in = 0;
  for (const Piece& piece : step.pieces) {
    const int64_t bytes = piece.source.bytes();
    if (!step.kind->reduces && !step.kind->to_all) {
      if (piece.from != piece.to && piece.from == rank) out += bytes;
      if (piece.from != piece.to && piece.to == rank) in += bytes;
    } else {
      shared += step.kind->reduces && step.kind->to_all ? 2 * bytes : bytes;
    }
  }
  return shared / members * (members - 1) + std::max(out, in);
}

// Codec::effort() of what the step encodes or decodes on the host; 0 of other steps.
int64_t codec_effort(const Step& step) {
  if (step.target.codec) return step.target.codec->effort(step.target.dtype);
  int64_t effort = 0;
  for (const Range& source : step.sources) {
    if (source.codec) effort += source.codec->effort(source.dtype);
  }
  return effort;
}

}  // namespace

StepCost::StepCost(const Topology& topology, const CostParameters& parameters)
    : topology_(topology), parameters_(parameters) {
  const int64_t slowest =
      std::min({parameters.memory_bandwidth, parameters.cache_bandwidth,
                parameters.assumed_bandwidth, parameters.copy_bandwidth,
                parameters.device_bandwidth, parameters.ccl_bandwidth, parameters.codec_bandwidth});
  if (slowest <= 0) {
    throw Error(Code::invalid_argument,
                "cost parameters: expected bandwidths above 0; got " + std::to_string(slowest));
  }
  std::vector<int> measured;
  if (parameters.profile) measured = parameters.profile->match_hosts(topology);
  for (size_t host = 0; host < topology.hosts().size(); ++host) {
    int64_t rate = topology.host_bandwidth(static_cast<int>(host));
    if (!measured.empty()) {
      const int64_t known = parameters.profile->hosts[measured[host]].bandwidth;
      if (known > 0) rate = known;
    }
    rates_.push_back(rate > 0 ? rate : parameters.assumed_bandwidth);
  }
  for (const std::vector<Zone>& zones : topology.zones()) {
    std::vector<int>& uplinks = zones_.emplace_back(topology.hosts().size(), -1);
    for (const Zone& zone : zones) {
      if (zone.uplink <= 0) continue;
      for (int host : zone.hosts) uplinks[host] = static_cast<int>(rates_.size());
      rates_.push_back(zone.uplink);
    }
  }
  for (const std::vector<int>& members : topology.islands()) {
    std::map<int, int64_t>& crossed = crossed_.emplace_back();
    int64_t rate = parameters.ccl_bandwidth;
    const int first = topology.host_of(members[0]);
    const auto last = std::find_if(members.begin(), members.end(),
                                   [&](int rank) { return topology.host_of(rank) != first; });
    if (topology.native(members[0]) && last != members.end()) {
      for (int rank : members) {
        const int host = topology.host_of(rank);
        ++crossed[host];
        for (const std::vector<int>& uplinks : zones_) {
          if (uplinks[host] >= 0) ++crossed[uplinks[host]];
        }
      }
      std::erase_if(crossed,
                    [&](const auto& uplink) { return uplink.second == std::ssize(members); });
      for (const auto& [uplink, behind] : crossed) rate = std::min(rate, rates_[uplink]);
    }
    island_rates_.push_back(rate);
  }
}

int64_t StepCost::at_uplink(int uplink, int64_t bytes) const {
  return duration(bytes, rates_[uplink]);
}

StepCost::Use StepCost::local(const Step& step, int rank) const {
  // A step reads every source and writes the target.
  const bool reads_staging = step.sources.at(0).space == Space::staging;
  const bool writes_staging = step.target.space == Space::staging;
  int64_t bytes = step.target.bytes();
  if (reads_staging != writes_staging) {
    return {writes_staging ? to_staging : from_staging, duration(bytes, parameters_.copy_bandwidth),
            parameters_.copy_latency};
  }
  for (const Range& source : step.sources) bytes += source.bytes();
  if (topology_.native(rank) && !reads_staging) {
    return {device, duration(bytes, parameters_.device_bandwidth), parameters_.kernel_latency};
  }
  if (const int64_t effort = codec_effort(step); effort > 0) {
    bytes = static_cast<int64_t>(static_cast<__int128>(step.target.plain_bytes()) * effort / 1000 *
                                 parameters_.memory_bandwidth / parameters_.codec_bandwidth);
  }
  return {core, core_time(rank, bytes), 0};
}

int64_t StepCost::island(const Step& step, int rank) const {
  if (!topology_.native(rank)) return island_time(parameters_, topology_, rank, step);
  const int island = topology_.island_of(rank);
  const auto members = static_cast<int64_t>(topology_.island(island).size());
  return parameters_.ccl_latency + duration(ccl_bytes(step, rank, members), island_rates_[island]);
}

std::vector<StepCost::UplinkUse> StepCost::island_uplinks(const Step& step, int rank) const {
  const int island = topology_.island_of(rank), host = topology_.host_of(rank);
  const std::map<int, int64_t>& crossed = crossed_[island];
  std::vector<UplinkUse> uses;
  if (crossed.empty()) return uses;
  const auto use_of = [&](int uplink) -> UplinkUse& {
    for (UplinkUse& use : uses) {
      if (use.uplink == uplink) return use;
    }
    return uses.emplace_back(uplink);
  };
  if (!step.is_exchange()) {  // a ring leaves each host and zone once, and comes back
    const int64_t bytes = ccl_bytes(step, rank, std::ssize(topology_.island(island)));
    const auto share = [&](int uplink) {
      const auto known = crossed.find(uplink);
      if (known == crossed.end()) return;
      UplinkUse& use = use_of(uplink);
      use.out = use.in = duration(bytes, rates_[uplink], 1, known->second);
    };
    share(host);
    for (const std::vector<int>& uplinks : zones_) share(uplinks[host]);
    return uses;
  }
  for (const Piece& piece : step.pieces) {
    if (topology_.same_host(piece.from, piece.to)) continue;
    if (piece.from != rank && piece.to != rank) continue;
    const int other = topology_.host_of(piece.from == rank ? piece.to : piece.from);
    each_uplink(host, other, [&](int uplink) {
      UplinkUse& use = use_of(uplink);
      (piece.from == rank ? use.out : use.in) += piece.source.bytes();
    });
  }
  for (UplinkUse& use : uses) {
    use.out = at_uplink(use.uplink, use.out);
    use.in = at_uplink(use.uplink, use.in);
  }
  return uses;
}

StepCost::Message StepCost::message(int from, int to, const Range& target) const {
  const int64_t bytes = message_bytes(target);
  if (!topology_.same_host(from, to)) {
    return {true,
            core,
            core,
            duration(bytes, bandwidth(from)),
            duration(bytes, bandwidth(to)),
            link_latency(from, to, bytes),
            bytes};
  }
  if (topology_.native(from) && topology_.native(to) &&
      !topology_.staged(from, to, target.bytes())) {
    const int64_t length = duration(bytes, parameters_.ccl_bandwidth);
    return {false, to_device, from_device, length, length, parameters_.copy_latency, bytes};
  }
  return {false,
          core,
          core,
          core_time(from, 2 * bytes),
          core_time(to, 2 * bytes),
          parameters_.link_latency_shm,
          bytes};
}

StepCost::Message StepCost::message(const Step& step, int rank) const {
  return step.kind->sends ? message(rank, step.peer, step.message())
                          : message(step.peer, rank, step.message());
}

int64_t StepCost::busy(const Step& step, int rank) const {
  if (step.in_island()) return island(step, rank);
  if (step.is_message()) {
    const Message moved = message(step, rank);
    return (step.kind->sends ? moved.out : moved.in) + moved.latency;
  }
  const Use use = local(step, rank);
  return use.length + use.latency;
}

int64_t StepCost::gap(int rank, int peer) const {
  const bool tcp = topology_.fabric_between(rank, peer) == Fabric::ethernet;
  const auto& [ranks, processors] = topology_.crowd(topology_.host_of(rank));
  const int64_t cores = std::min(ranks, processors);
  // Ranks that share a core take turns, and a turn is often spent waiting. Of 4 ranks on a core, an
  // 8 B all_reduce of 8 hosts took 0.48 ms by doubling and 0.90 ms directly. The square predicts
  // 0.43 and 1.07 ms.
  return (tcp ? parameters_.message_gap_tcp : parameters_.message_gap_rdma) * ranks * ranks /
         (cores * cores);
}

int64_t StepCost::mean_hop(int64_t bytes) const {
  const std::vector<std::vector<int>>& hosts = topology_.hosts();
  if (hosts.size() == 1) return parameters_.link_latency_shm;
  int64_t sum = 0;
  for (size_t host = 0; host < hosts.size(); ++host) {
    const int next = hosts[(host + 1) % hosts.size()][0];
    sum += at_uplink(static_cast<int>(host), bytes) + link_latency(hosts[host][0], next, bytes);
  }
  return sum / static_cast<int64_t>(hosts.size()) + parameters_.step_overhead;
}

int64_t StepCost::message_bytes(const Range& range) const {
  if (!range.codec || parameters_.encoded_share == 0) return range.message_bytes();
  const __int128 bytes = range.plain_bytes();
  return static_cast<int64_t>(bytes * parameters_.encoded_share / 1000);
}

// The ranks of its host, and the cores that these ranks share.
std::pair<int64_t, int64_t> StepCost::sharing(int rank) const {
  const int host = topology_.host_of(rank);
  const auto ranks = static_cast<int64_t>(topology_.hosts()[host].size());
  return {ranks, std::min<int64_t>(ranks, topology_.processors(host))};
}

// ns to issue a step and to move its bytes through memory, with the rank's share of the cores.
int64_t StepCost::core_time(int rank, int64_t bytes) const {
  const auto [ranks, cores] = sharing(rank);
  return parameters_.step_overhead + duration(bytes, parameters_.memory_bandwidth, ranks, cores);
}

// ns of a message between hosts beside its time at the NICs.
int64_t StepCost::link_latency(int from, int to, int64_t bytes) const {
  const Fabric fabric = topology_.fabric_between(from, to);
  if (parameters_.profile) {
    const auto measured = parameters_.profile->messages.find(fabric);
    if (measured != parameters_.profile->messages.end()) {
      const int64_t nics = duration(bytes, std::min(bandwidth(from), bandwidth(to)));
      return std::max<int64_t>(0, measured->second.at(bytes) - nics - parameters_.step_overhead);
    }
  }
  return fabric == Fabric::ethernet ? parameters_.link_latency_tcp : parameters_.link_latency_rdma;
}

int64_t StepCost::bandwidth(int rank) const { return rates_[topology_.host_of(rank)]; }

}  // namespace hetcomm
