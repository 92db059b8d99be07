#include "plan/cost.h"

#include <algorithm>
#include <functional>
#include <queue>

#include "base/status.h"
#include "plan/island_cost.h"
#include "plan/step_graph.h"

namespace hetcomm {

int64_t duration(__int128 bytes, int64_t bandwidth, int64_t factor, int64_t divisor) {
  const __int128 work = bytes * factor * 1'000'000'000;
  const __int128 rate = static_cast<__int128>(bandwidth) * divisor;
  return static_cast<int64_t>((work + rate - 1) / rate);
}

CostParameters::CostParameters(std::shared_ptr<const Profile> measured)
    : profile(std::move(measured)) {
  if (!profile) return;
  memory_bandwidth = profile->memory_bandwidth;
  step_overhead = profile->step_overhead;
}

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

// Takes steps in the order in which they can start. A step occupies its resources as soon as it can
// start and they are free: first come, first served.
class Replay {
 public:
  Replay(const Topology& topology, const CostParameters& parameters, const StepGraph& graph)
      : topology_(topology),
        parameters_(parameters),
        graph_(graph),
        waits_(graph.waits()),
        ready_(graph.steps(), 0),
        span_(graph.steps()),
        arrived_(graph.collectives().size(), 0),
        posted_(graph.steps(), false),
        core_free_(topology.size(), 0),
        core_busy_(topology.size(), 0),
        messages_free_(topology.size(), 0),
        devices_(topology.size()),
        nics_(topology.hosts().size()) {
    if (parameters.profile) measured_hosts_ = parameters.profile->match_hosts(topology);
  }

  Cost run() {
    for (int step = 0; step < graph_.steps(); ++step) {
      if (waits_[step] == 0) queue_.emplace(0, step);
    }
    while (!queue_.empty()) {
      const int step = queue_.top().second;
      queue_.pop();
      start(step);
    }
    if (completed_ < graph_.steps()) {
      throw Error(Code::invalid_argument,
                  "cannot price plans that deadlock: expected " + std::to_string(graph_.steps()) +
                      " steps to complete, got " + std::to_string(completed_));
    }
    cost_.island = *std::max_element(core_busy_.begin(), core_busy_.end());
    for (const Device& device : devices_) {
      cost_.staging = std::max({cost_.staging, device.out.busy, device.in.busy});
    }
    for (const Nics& nics : nics_) {
      cost_.bridge = std::max({cost_.bridge, nics.out.busy, nics.in.busy});
      cost_.bridge_bytes = std::max(cost_.bridge_bytes, nics.bytes_out);
    }
    return cost_;
  }

  const Interval& span(int step) const { return span_[step]; }

 private:
  struct Engine {
    int64_t free = 0, busy = 0;
  };
  struct Nics {
    Engine out, in;
    int64_t bytes_out = 0;
  };
  struct Device {
    Engine out, in, own;  // device memory to staging, staging to device memory, inside the device
    Engine to, from;      // to and from device memory of other ranks of the host
  };

  void start(int step) {
    if (const int collective = graph_.island_collective_of(step); collective >= 0) {
      const std::vector<int>& steps = graph_.collectives()[collective].steps;
      if (++arrived_[collective] == static_cast<int>(steps.size())) run_island(steps);
    } else if (const int partner = graph_.partner(step); partner >= 0) {
      posted_[step] = true;
      if (!posted_[partner]) return;
      const bool sends = graph_.step(step).kind->sends;
      run_message(sends ? step : partner, sends ? partner : step);
    } else {
      run_local(step);
    }
  }

  // Codec::effort() of what the step encodes or decodes on the host; 0 of other steps.
  static int64_t codec_effort(const Step& step) {
    if (step.target.codec) return step.target.codec->effort(step.target.dtype);
    int64_t effort = 0;
    for (const Range& source : step.sources) {
      if (source.codec) effort += source.codec->effort(source.dtype);
    }
    return effort;
  }

  void run_local(int step) {
    // A step reads every source and writes the target.
    const Step& at = graph_.step(step);
    const int rank = graph_.rank_of(step);
    const bool reads_staging = at.sources.at(0).space == Space::staging;
    const bool writes_staging = at.target.space == Space::staging;
    if (reads_staging != writes_staging) {
      const int64_t bytes = at.target.bytes();
      Engine& engine = writes_staging ? devices_[rank].out : devices_[rank].in;
      return complete(step, occupy(engine, ready_[step], parameters_.copy_latency,
                                   duration(bytes, parameters_.copy_bandwidth)));
    }
    const bool on_device = topology_.native(rank) && !reads_staging;
    int64_t bytes = at.target.bytes();
    for (const Range& source : at.sources) bytes += source.bytes();
    if (const int64_t effort = codec_effort(at); effort > 0 && !on_device) {
      bytes = static_cast<int64_t>(static_cast<__int128>(at.target.plain_bytes()) * effort / 1000 *
                                   parameters_.memory_bandwidth / parameters_.codec_bandwidth);
    }
    const Interval span = on_device
                              ? occupy(devices_[rank].own, ready_[step], parameters_.kernel_latency,
                                       duration(bytes, parameters_.device_bandwidth))
                              : occupy_core(rank, ready_[step], bytes);
    core_busy_[rank] += span.end - span.start;
    complete(step, span);
  }

  // An engine is free for the next step before its latency is over.
  static Interval occupy(Engine& engine, int64_t ready, int64_t latency, int64_t length) {
    const int64_t start = std::max(ready, engine.free);
    engine.free = start + length;
    engine.busy += length;
    return {start, engine.free + latency};
  }

  // ns of an island step of a native library.
  int64_t ccl_time(const std::vector<int>& steps) const {
    const int first = graph_.rank_of(steps[0]);
    int64_t rate = parameters_.ccl_bandwidth, bytes = 0;
    for (int step : steps) {
      const int rank = graph_.rank_of(step);
      if (!topology_.same_host(rank, first)) {
        rate = std::min({rate, bandwidth(rank), bandwidth(first)});
      }
      bytes =
          std::max(bytes, ccl_bytes(graph_.step(step), rank, static_cast<int64_t>(steps.size())));
    }
    return parameters_.ccl_latency + duration(bytes, rate);
  }

  void run_island(const std::vector<int>& steps) {
    const int first = graph_.rank_of(steps[0]);
    const bool native = topology_.native(first);
    const auto busy_until = [&](int rank) -> int64_t& {
      return native ? devices_[rank].own.free : core_free_[rank];
    };
    int64_t start = 0;
    for (int step : steps) {
      start = std::max({start, ready_[step], busy_until(graph_.rank_of(step))});
    }
    const int64_t length = native
                               ? ccl_time(steps)
                               : island_time(parameters_, topology_, first, graph_.step(steps[0]));
    for (int step : steps) {
      const int rank = graph_.rank_of(step);
      busy_until(rank) = start + length;
      core_busy_[rank] += length;
      complete(step, {start, start + length});
    }
  }

  void run_message(int send, int recv) {
    const int from = graph_.rank_of(send), to = graph_.rank_of(recv);
    const int64_t bytes = message_bytes(graph_.step(recv).target);
    const int64_t posted = std::max(ready_[send], ready_[recv]);
    // Flows share a NIC fairly, so no end waits for the order of flows at the other end. The
    // message is complete when the queues of both ends are done with it.
    Interval out, in;
    int64_t latency = parameters_.link_latency_shm;
    if (direct(from, to, graph_.step(recv).target.bytes())) {
      const int64_t length = duration(bytes, parameters_.ccl_bandwidth);
      out = occupy(devices_[from].to, posted, 0, length);
      in = occupy(devices_[to].from, posted, 0, length);
      latency = parameters_.copy_latency;
    } else if (topology_.same_host(from, to)) {
      out = occupy_core(from, posted, 2 * bytes);
      in = occupy_core(to, posted, 2 * bytes);
    } else {
      const int64_t sends = issue(from, to, posted), receives = issue(to, from, posted);
      const int64_t start = std::max(sends, receives) + parameters_.step_overhead;
      Nics& sender = nics_[topology_.host_of(from)];
      out = occupy(sender.out, start, 0, duration(bytes, bandwidth(from)));
      in = occupy(nics_[topology_.host_of(to)].in, start, 0, duration(bytes, bandwidth(to)));
      sender.bytes_out += bytes;
      latency = link_latency(from, to, bytes);
    }
    const Interval span{std::min(out.start, in.start), std::max(out.end, in.end) + latency};
    complete(send, span);
    complete(recv, span);
  }

  int64_t message_bytes(const Range& range) const {
    if (!range.codec || parameters_.encoded_share == 0) return range.message_bytes();
    const __int128 bytes = range.plain_bytes();
    return static_cast<int64_t>(bytes * parameters_.encoded_share / 1000);
  }

  // Whether a message goes from one device's memory to another's inside a host.
  bool direct(int from, int to, int64_t bytes) const {
    return topology_.same_host(from, to) && topology_.native(from) && topology_.native(to) &&
           !topology_.staged(from, to, bytes);
  }

  // The ranks of its host, and the cores that these ranks share.
  std::pair<int64_t, int64_t> sharing(int rank) const {
    const int host = topology_.host_of(rank);
    const auto ranks = static_cast<int64_t>(topology_.hosts()[host].size());
    return {ranks, std::min<int64_t>(ranks, topology_.processors(host))};
  }

  // ns to issue a step and to move its bytes through memory, with the rank's share of the cores.
  int64_t core_time(int rank, int64_t bytes) const {
    const auto [ranks, cores] = sharing(rank);
    return parameters_.step_overhead + duration(bytes, parameters_.memory_bandwidth, ranks, cores);
  }

  Interval occupy_core(int rank, int64_t ready, int64_t bytes) {
    const int64_t start = std::max(ready, core_free_[rank]);
    core_free_[rank] = start + core_time(rank, bytes);
    return {start, core_free_[rank]};
  }

  // The time at which a rank issues its message with a peer on another host.
  int64_t issue(int rank, int peer, int64_t posted) {
    const bool tcp = topology_.fabric_between(rank, peer) == Fabric::ethernet;
    const int64_t gap = tcp ? parameters_.message_gap_tcp : parameters_.message_gap_rdma;
    const int64_t start = std::max(posted, messages_free_[rank]);
    const auto [ranks, cores] = sharing(rank);
    messages_free_[rank] = start + gap * ranks / cores;
    return start;
  }

  // ns of a message between hosts beside its time at the NICs.
  int64_t link_latency(int from, int to, int64_t bytes) const {
    const Fabric fabric = topology_.fabric_between(from, to);
    if (parameters_.profile) {
      const auto measured = parameters_.profile->messages.find(fabric);
      if (measured != parameters_.profile->messages.end()) {
        const int64_t nics = duration(bytes, std::min(bandwidth(from), bandwidth(to)));
        return std::max<int64_t>(0, measured->second.at(bytes) - nics - parameters_.step_overhead);
      }
    }
    return fabric == Fabric::ethernet ? parameters_.link_latency_tcp
                                      : parameters_.link_latency_rdma;
  }

  int64_t bandwidth(int rank) const {
    const int host = topology_.host_of(rank);
    if (!measured_hosts_.empty()) {
      const int64_t measured = parameters_.profile->hosts[measured_hosts_[host]].bandwidth;
      if (measured > 0) return measured;
    }
    const int64_t reported = topology_.host_bandwidth(host);
    return reported > 0 ? reported : parameters_.assumed_bandwidth;
  }

  void complete(int step, const Interval& span) {
    ++completed_;
    span_[step] = span;
    cost_.total = std::max(cost_.total, span.end);
    for (int next : graph_.dependents(step)) {
      ready_[next] = std::max(ready_[next], span.end);
      if (--waits_[next] == 0) queue_.emplace(ready_[next], next);
    }
  }

  const Topology& topology_;
  const CostParameters& parameters_;
  const StepGraph& graph_;
  std::vector<int> waits_;
  std::vector<int64_t> ready_;
  std::vector<Interval> span_;
  std::vector<int> arrived_;  // members, by island collective
  std::vector<bool> posted_;  // sends and recvs
  std::vector<int64_t> core_free_, core_busy_, messages_free_;
  std::vector<Device> devices_;  // by rank
  std::vector<Nics> nics_;
  std::vector<int> measured_hosts_;  // indices in the profile, by host; empty without a profile
  std::priority_queue<std::pair<int64_t, int>, std::vector<std::pair<int64_t, int>>, std::greater<>>
      queue_;
  int completed_ = 0;
  Cost cost_;
};

}  // namespace

Cost predict(const Topology& topology, const std::vector<Plan>& plans,
             const CostParameters& parameters, Timeline* timeline) {
  const int64_t slowest =
      std::min({parameters.memory_bandwidth, parameters.cache_bandwidth,
                parameters.assumed_bandwidth, parameters.copy_bandwidth,
                parameters.device_bandwidth, parameters.ccl_bandwidth, parameters.codec_bandwidth});
  if (slowest <= 0) {
    throw Error(Code::invalid_argument,
                "cost parameters: expected bandwidths above 0; got " + std::to_string(slowest));
  }
  const StepGraph graph(topology, plans);
  if (!graph.errors().empty()) {
    throw Error(Code::invalid_argument, "cannot price these plans: " + graph.errors()[0]);
  }
  Replay replay(topology, parameters, graph);
  const Cost cost = replay.run();
  if (timeline) {
    timeline->assign(plans.size(), {});
    for (int step = 0; step < graph.steps(); ++step) {
      (*timeline)[graph.rank_of(step)].push_back(replay.span(step));
    }
  }
  return cost;
}

}  // namespace hetcomm
