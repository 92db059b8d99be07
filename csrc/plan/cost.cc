#include "plan/cost.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>

#include "base/status.h"
#include "plan/step_cost.h"
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

// Takes steps in the order in which they can start. A step occupies its resources as soon as it can
// start and they are free: first come, first served.
class Replay {
 public:
  Replay(const Topology& topology, const CostParameters& parameters, const StepGraph& graph)
      : topology_(topology),
        cost_of_(topology, parameters),
        graph_(graph),
        waits_(graph.waits()),
        ready_(graph.steps(), 0),
        span_(graph.steps()),
        arrived_(graph.collectives().size(), 0),
        posted_(graph.steps(), false),
        ranks_(topology.size()),
        uplinks_(cost_of_.uplinks()) {}

  Cost run() {
    for (int step = 0; step < graph_.steps(); ++step) {
      if (waits_[step] == 0) enqueue(step);
    }
    while (!queue_.empty()) {
      const int step = std::get<2>(queue_.top());
      queue_.pop();
      start(step);
    }
    if (completed_ < graph_.steps()) {
      throw Error(Code::invalid_argument,
                  "cannot price plans that deadlock: expected " + std::to_string(graph_.steps()) +
                      " steps to complete, got " + std::to_string(completed_));
    }
    for (const Rank& rank : ranks_) {
      cost_.island = std::max(cost_.island, rank.island);
      for (const auto part : {StepCost::to_staging, StepCost::from_staging}) {
        cost_.staging = std::max(cost_.staging, rank.parts[part].busy);
      }
    }
    for (const Uplink& uplink : uplinks_) {
      cost_.bridge = std::max({cost_.bridge, uplink.out.busy, uplink.in.busy});
      cost_.bridge_bytes = std::max(cost_.bridge_bytes, uplink.bytes_out);
    }
    return cost_;
  }

  const Interval& span(int step) const { return span_[step]; }

 private:
  struct Engine {
    int64_t free = 0, busy = 0;
  };
  struct Uplink {
    Engine out, in;
    int64_t bytes_out = 0;
  };
  struct Rank {
    Engine parts[StepCost::kParts];
    int64_t island = 0;         // ns of island steps, copies and reductions
    int64_t messages_free = 0;  // when it can issue its next message
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

  void run_local(int step) {
    Rank& rank = ranks_[graph_.rank_of(step)];
    const StepCost::Use use = cost_of_.local(graph_.step(step), graph_.rank_of(step));
    const Interval span = occupy(rank.parts[use.part], ready_[step], use.latency, use.length);
    if (use.part == StepCost::core || use.part == StepCost::device) {
      rank.island += span.end - span.start;
    }
    complete(step, span);
  }

  // An engine is free for the next step before its latency is over.
  static Interval occupy(Engine& engine, int64_t ready, int64_t latency, int64_t length) {
    const int64_t start = std::max(ready, engine.free);
    engine.free = start + length;
    engine.busy += length;
    return {start, engine.free + latency};
  }

  void run_island(const std::vector<int>& steps) {
    const StepCost::Part part =
        topology_.native(graph_.rank_of(steps[0])) ? StepCost::device : StepCost::core;
    int64_t start = 0, length = 0;
    for (int step : steps) {
      start = std::max({start, ready_[step], ranks_[graph_.rank_of(step)].parts[part].free});
      // Members of a native all_to_all move unlike amounts. In other steps all take equally long.
      const StepKind& kind = *graph_.step(step).kind;
      if (length == 0 || (part == StepCost::device && !kind.reduces && !kind.to_all)) {
        length = std::max(length, cost_of_.island(graph_.step(step), graph_.rank_of(step)));
      }
    }
    // The library and messages share the uplinks.
    int64_t end = start + length;
    for (int step : steps) {
      for (const auto& use : cost_of_.island_uplinks(graph_.step(step), graph_.rank_of(step))) {
        Uplink& uplink = uplinks_[use.uplink];
        if (use.out > 0) end = std::max(end, occupy(uplink.out, start, 0, use.out).end);
        if (use.in > 0) end = std::max(end, occupy(uplink.in, start, 0, use.in).end);
        uplink.out.busy -= use.out;  // the bridge's time is that of messages
        uplink.in.busy -= use.in;
      }
    }
    for (int step : steps) {
      Rank& rank = ranks_[graph_.rank_of(step)];
      rank.parts[part].free = end;
      rank.island += length;
      complete(step, {start, end});
    }
  }

  void run_message(int send, int recv) {
    const int from = graph_.rank_of(send), to = graph_.rank_of(recv);
    const StepCost::Message message = cost_of_.message(from, to, graph_.step(recv).target);
    const int64_t posted = std::max(ready_[send], ready_[recv]);
    // Flows share an uplink fairly, so no end waits for the order of flows at the other end. The
    // message is complete when the queues of all uplinks are done with it.
    Interval span{INT64_MAX, 0};
    const auto take = [&](Engine& engine, int64_t start, int64_t length) {
      const Interval used = occupy(engine, start, 0, length);
      span = {std::min(span.start, used.start), std::max(span.end, used.end)};
    };
    if (message.between_hosts) {
      const int64_t sends = issue(from, to, posted), receives = issue(to, from, posted);
      const int64_t start = std::max(sends, receives) + cost_of_.overhead();
      const int sender = topology_.host_of(from), receiver = topology_.host_of(to);
      cost_of_.each_uplink(sender, receiver, [&](int uplink) {
        take(uplinks_[uplink].out, start, cost_of_.at_uplink(uplink, message.bytes));
      });
      cost_of_.each_uplink(receiver, sender, [&](int uplink) {
        take(uplinks_[uplink].in, start, cost_of_.at_uplink(uplink, message.bytes));
      });
      uplinks_[sender].bytes_out += message.bytes;
    } else {
      take(ranks_[from].parts[message.out_part], posted, message.out);
      take(ranks_[to].parts[message.in_part], posted, message.in);
    }
    span.end += message.latency;
    complete(send, span);
    complete(recv, span);
  }

  // The time at which a rank issues its message with a peer on another host.
  int64_t issue(int rank, int peer, int64_t posted) {
    int64_t& free = ranks_[rank].messages_free;
    const int64_t start = std::max(posted, free);
    free = start + cost_of_.gap(rank, peer);
    return start;
  }

  // Of steps that can start at the same time, ranks take turns.
  void enqueue(int step) { queue_.emplace(ready_[step], graph_.index_of(step), step); }

  void complete(int step, const Interval& span) {
    ++completed_;
    span_[step] = span;
    cost_.total = std::max(cost_.total, span.end);
    for (int next : graph_.dependents(step)) {
      ready_[next] = std::max(ready_[next], span.end);
      if (--waits_[next] == 0) enqueue(next);
    }
  }

  const Topology& topology_;
  const StepCost cost_of_;
  const StepGraph& graph_;
  std::vector<int> waits_;
  std::vector<int64_t> ready_;
  std::vector<Interval> span_;
  std::vector<int> arrived_;  // members, by island collective
  std::vector<bool> posted_;  // sends and recvs
  std::vector<Rank> ranks_;
  std::vector<Uplink> uplinks_;
  using Entry = std::tuple<int64_t, int, int>;  // when, index in the plan, step
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
  int completed_ = 0;
  Cost cost_;
};

}  // namespace

Cost predict(const Topology& topology, const std::vector<Plan>& plans,
             const CostParameters& parameters, Timeline* timeline) {
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
