#include "plan/estimate.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "plan/step_cost.h"

namespace hetcomm {
namespace {

constexpr size_t kMostClasses = 16;
constexpr size_t kOfZone = 4;  // hosts
// Some members of an island have nothing of a buffer with fewer bytes for each: see kShardBytes of
// algorithms/segments.cc.
constexpr int64_t kShort = 1024;

// ns at an uplink.
struct Flow {
  int64_t out = 0, in = 0;                  // of messages of the first chunk
  int64_t library_out = 0, library_in = 0;  // of its island steps
  int64_t once_out = 0, once_in = 0;        // of island steps beside the chunks

  void add(const Flow& flow, int64_t number) {
    out += number * flow.out;
    in += number * flow.in;
    library_out += number * flow.library_out;
    library_in += number * flow.library_in;
    once_out += number * flow.once_out;
    once_in += number * flow.once_in;
  }
};

// ns of the steps of one rank for the first chunk.
struct RankLoad {
  std::array<int64_t, StepCost::kParts> parts{};
  int64_t once = 0;            // island steps beside the chunks: no message depends on them
  int64_t island = 0;          // island steps, copies and reductions, without `once`
  int64_t alone = 0;           // steps of the rank alone
  int64_t kernel_latency = 0;  // of its slowest step in device memory
  int64_t copy_latency = 0;    // of its slowest copy between device memory and staging
  std::map<int, Flow> flows;   // by uplink; `parts` have the island steps, too
  int64_t issue = 0;           // its messages with other hosts
  int64_t link_latency = 0;    // of its slowest message
  int64_t message_bytes = 0;   // of its longest message with another host
  int64_t bytes_out = 0;

  RankLoad(const Topology& topology, const StepCost& cost, const Plan& plan, bool chunked) {
    std::vector<bool> joined(plan.steps.size());  // with other steps
    for (size_t i = 0; i < plan.steps.size(); ++i) {
      joined[i] = joined[i] || !plan.steps[i].after.empty();
      for (int before : plan.steps[i].after) joined[before] = true;
    }
    for (size_t i = 0; i < plan.steps.size(); ++i) {
      const Step& step = plan.steps[i];
      if (step.in_island()) {
        // The root of a reduce in chunks only receives the pieces of each.
        const bool of_chunk = joined[i] || (step.is_exchange() && chunked);
        add_island(of_chunk, topology.native(plan.rank) ? StepCost::device : StepCost::core,
                   cost.island(step, plan.rank));
        for (const StepCost::UplinkUse& use : cost.island_uplinks(step, plan.rank)) {
          Flow& flow = flows[use.uplink];
          (of_chunk ? flow.library_out : flow.once_out) += use.out;
          (of_chunk ? flow.library_in : flow.once_in) += use.in;
        }
      } else if (step.is_message()) {
        add_message(topology, cost, plan.rank, step);
      } else {
        add_alone(cost.local(step, plan.rank));
      }
    }
  }

  // ns of all parts, one after the other.
  int64_t serial() const { return std::accumulate(parts.begin(), parts.end(), int64_t{0}); }
  int64_t busiest() const { return std::max(issue, *std::max_element(parts.begin(), parts.end())); }

 private:
  void add_island(bool of_chunk, StepCost::Part part, int64_t length) {
    if (!of_chunk) {
      once += length;
      return;
    }
    parts[part] += length;
    island += length;
  }

  void add_message(const Topology& topology, const StepCost& cost, int rank, const Step& step) {
    const bool is_send = step.kind->sends;
    const StepCost::Message message = cost.message(step, rank);
    if (message.between_hosts) {
      issue += cost.gap(rank, step.peer);
      cost.each_uplink(topology.host_of(rank), topology.host_of(step.peer), [&](int uplink) {
        Flow& flow = flows[uplink];
        (is_send ? flow.out : flow.in) += cost.at_uplink(uplink, message.bytes);
      });
      bytes_out += is_send ? message.bytes : 0;
      message_bytes = std::max(message_bytes, message.bytes);
      link_latency = std::max(link_latency, message.latency + cost.overhead());
    } else {
      parts[is_send ? message.out_part : message.in_part] += is_send ? message.out : message.in;
      link_latency = std::max(link_latency, message.latency);
    }
  }

  void add_alone(const StepCost::Use& use) {
    parts[use.part] += use.length;
    alone += use.length;
    if (use.part == StepCost::core || use.part == StepCost::device) {
      island += use.length + use.latency;
      kernel_latency = std::max(kernel_latency, use.latency);
    } else {
      copy_latency = std::max(copy_latency, use.latency);
    }
  }
};

// What the ranks of one host send and receive between islands for the first chunk, in ns.
struct HostTraffic {
  int host = 0;
  std::map<int, Flow> flows;  // by uplink
  int64_t bytes_out = 0;
  int64_t issue = 0;  // of the messages of its busiest rank
  int64_t link_latency = 0, kernel_latency = 0, copy_latency = 0;
  int64_t ranks = 0;  // with messages

  void add(const RankLoad& load, int64_t number) {
    for (const auto& [uplink, flow] : load.flows) flows[uplink].add(flow, number);
    bytes_out += number * load.bytes_out;
    issue = std::max(issue, load.issue);
    link_latency = std::max(link_latency, load.link_latency);
    kernel_latency = std::max(kernel_latency, load.kernel_latency);
    copy_latency = std::max(copy_latency, load.copy_latency);
    if (load.issue > 0) ranks += number;
  }
  int64_t nics() const {
    const auto own = flows.find(host);
    return own == flows.end() ? 0 : std::max(own->second.out, own->second.in);
  }

  // The messages of a rank go in `hops` phases, each after the messages of the one before.
  int64_t time(int64_t hops) const {
    const int64_t phase = std::max(issue, nics()) / hops;
    // While the last message of one rank is under way, the other ranks use the NICs.
    const int64_t of_rank = phase / std::max<int64_t>(1, ranks) + link_latency + kernel_latency;
    return (hops - 1) * std::max(phase, of_rank) + phase + link_latency + kernel_latency +
           2 * copy_latency;
  }
};

// The hosts of a zone whose messages are looked at. Messages over an uplink may be those of some
// hosts alone, such as the first and the last.
std::vector<int> sample_of(const Zone& zone) {
  const std::vector<int>& all = zone.hosts;
  std::vector<int> sample;
  for (size_t i = 0; i < all.size(); i += all.size() / kOfZone + 1) sample.push_back(all[i]);
  sample.insert(sample.end(), {all[std::min<size_t>(1, all.size() - 1)], all.back()});
  std::sort(sample.begin(), sample.end());
  sample.erase(std::unique(sample.begin(), sample.end()), sample.end());
  return sample;
}

// At the NICs of representative hosts, and at the uplinks of zones with a sample among these. In a
// zone a host of the sample stands for those up to the next one.
std::map<int, Flow> flows_of(const Topology& topology, const StepCost& cost,
                             const std::map<int, HostTraffic>& traffic) {
  std::map<int, Flow> flows;
  const auto add = [&](int host, int uplink, int64_t number) {
    const std::map<int, Flow>& own = traffic.at(host).flows;
    const auto known = own.find(uplink);
    if (known != own.end()) flows[uplink].add(known->second, number);
  };
  for (const auto& [host, messages] : traffic) add(host, host, 1);
  for (int level = 0; level < std::ssize(topology.zones()); ++level) {
    for (const Zone& zone : topology.zones()[level]) {
      const int uplink = cost.uplink_of_zone(level, zone.hosts[0]);
      if (uplink < 0 || !traffic.contains(zone.hosts[0])) continue;
      const std::vector<int> sample = sample_of(zone);
      if (!std::all_of(sample.begin(), sample.end(),
                       [&](int host) { return traffic.contains(host); })) {
        continue;
      }
      auto next = zone.hosts.begin();
      for (size_t i = 0; i < sample.size(); ++i) {
        const auto begin = next;
        next = i + 1 < sample.size() ? std::find(begin, zone.hosts.end(), sample[i + 1])
                                     : zone.hosts.end();
        add(sample[i], uplink, next - begin);
      }
    }
  }
  return flows;
}

// What plans and prices depend on, and the roles of a host in them. Rates are exact, or powers of
// two.
std::vector<int64_t> facts_of(const Topology& topology, const StepCost& cost, int host,
                              bool exact) {
  const auto about = [&](int64_t fact) {
    return exact ? fact : static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(fact)));
  };
  const Topology::Crowd& crowd = topology.crowd(host);
  std::vector<int64_t> facts = {about(cost.rate(host)), topology.processors(host), crowd.ranks,
                                crowd.processors};
  for (int level = 0; level < std::ssize(topology.zones()); ++level) {
    const Zone& zone = topology.zones()[level][topology.zone_of(level, host)];
    facts.insert(facts.end(), {about(zone.uplink), about(std::ssize(zone.hosts))});
  }
  for (int rank : topology.hosts()[host]) {
    const RankInfo& info = topology.rank(rank);
    const std::vector<int>& members = topology.island(topology.island_of(rank));
    int64_t fabrics = 0;
    for (const Nic& nic : info.nics) fabrics |= int64_t{1} << static_cast<int>(nic.fabric);
    facts.insert(facts.end(),
                 {std::ssize(members), topology.native(rank), info.kernels, fabrics,
                  topology.stages_between_islands(rank, INT64_MAX - 1), info.direct_bytes});
    // The middle member has all that an island has of a short buffer.
    facts.push_back(!topology.same_host(members.front(), members.back()) &&
                    members[(members.size() - 1) / 2] == rank);
  }
  return facts;
}

struct HostClass {
  int first, last, slowest;
};

std::vector<HostClass> classes_of(const Topology& topology, const StepCost& cost, bool exact) {
  std::map<std::vector<int64_t>, HostClass> classes;
  for (int host = 0; host < static_cast<int>(topology.hosts().size()); ++host) {
    HostClass& known =
        classes.try_emplace(facts_of(topology, cost, host, exact), HostClass{host, host, host})
            .first->second;
    known.last = host;
    if (cost.rate(host) < cost.rate(known.slowest)) known.slowest = host;
  }
  std::vector<HostClass> all;
  for (const auto& [facts, known] : classes) all.push_back(known);
  std::stable_sort(all.begin(), all.end(), [&](const HostClass& a, const HostClass& b) {
    return cost.rate(a.slowest) < cost.rate(b.slowest);
  });
  return all;
}

}  // namespace

std::vector<Representative> representatives_of(const Topology& topology, const Spec& spec,
                                               const CostParameters& parameters) {
  const StepCost cost(topology, parameters);
  std::vector<HostClass> classes = classes_of(topology, cost, true);
  if (classes.size() > kMostClasses) classes = classes_of(topology, cost, false);
  if (classes.size() > kMostClasses) classes.resize(kMostClasses);  // the slowest ones
  std::set<int> hosts = {topology.host_of(spec.root)};
  for (const HostClass& some : classes) hosts.insert({some.first, some.last, some.slowest});
  // The zones with known uplinks that may be the slowest, and the root's one, have samples. Of
  // equal zones the last one counts, so that it is another one than the root's.
  for (int level = 0; level < std::ssize(topology.zones()); ++level) {
    const std::vector<Zone>& zones = topology.zones()[level];
    const auto uplink_of = [](const Zone& zone) {
      return zone.uplink > 0 ? zone.uplink : INT64_MAX;
    };
    const auto slowest = [&](const auto& rate) {
      const Zone* least = &zones[0];
      for (const Zone& zone : zones) {
        if (rate(zone) <= rate(*least)) least = &zone;
      }
      return least;
    };
    const auto for_a_host = [&](const Zone& zone) {
      return uplink_of(zone) / std::ssize(zone.hosts);
    };
    const Zone* const around_root = &zones[topology.zone_of(level, topology.host_of(spec.root))];
    for (const Zone* zone : {around_root, slowest(uplink_of), slowest(for_a_host)}) {
      if (zone->uplink <= 0) continue;
      const std::vector<int> sample = sample_of(*zone);
      hosts.insert(sample.begin(), sample.end());
    }
  }
  const int64_t bytes = largest_buffer(spec, topology.size());
  std::vector<Representative> representatives;
  for (int host : hosts) {
    std::map<int, std::vector<int>> members;  // of the host, by island
    for (int rank : topology.hosts()[host]) members[topology.island_of(rank)].push_back(rank);
    for (const auto& [island, ranks] : members) {
      // The first, the last, the middle member of the island and the root have roles of their own.
      const std::vector<int>& all = topology.island(island);
      std::set<int> special = {ranks.front(), ranks.back(), all[(all.size() - 1) / 2], spec.root};
      if (bytes < kShort * std::ssize(all)) special.insert(ranks.begin(), ranks.end());
      std::vector<int> others;
      for (int rank : ranks) {
        if (special.contains(rank)) {
          representatives.push_back({rank, 1});
        } else {
          others.push_back(rank);
        }
      }
      if (!others.empty()) representatives.push_back({others[0], std::ssize(others)});
    }
  }
  return representatives;
}

Cost estimate(const Topology& topology, const std::vector<Plan>& plans,
              const std::vector<Representative>& representatives, const Division& division,
              const Hops& hops, const CostParameters& parameters) {
  const StepCost step_cost(topology, parameters);
  const auto of_all = [&](int64_t of_chunk) {
    return scaled(of_chunk, division.whole, division.first);
  };
  Cost cost;
  int64_t serial = 0, busiest = 0, passing = 0, occupied = 0;
  std::map<int, HostTraffic> traffic;  // by host
  for (size_t i = 0; i < plans.size(); ++i) {
    const RankLoad load(topology, step_cost, plans[i], division.whole > division.first);
    serial = std::max(serial, load.serial());
    busiest = std::max(busiest, load.busiest());
    occupied = std::max(occupied, load.once + of_all(load.island));
    // A message on its way through other ranks.
    const int64_t hop = step_cost.mean_hop(load.message_bytes) + load.alone;
    passing = std::max(passing, hop * (hops.in_a_row - hops.own));
    const int host = topology.host_of(plans[i].rank);
    traffic.try_emplace(host, HostTraffic{host}).first->second.add(load, representatives[i].ranks);
    cost.staging = std::max(
        {cost.staging, load.parts[StepCost::to_staging], load.parts[StepCost::from_staging]});
  }
  int64_t crossing = 0, uplinks = 0, waits = 0;
  for (const auto& [host, messages] : traffic) {
    crossing = std::max(crossing, messages.time(hops.own));
    cost.bridge_bytes = std::max(cost.bridge_bytes, messages.bytes_out);
  }
  for (const auto& [uplink, flow] : flows_of(topology, step_cost, traffic)) {
    const int64_t out = flow.out + flow.library_out, in = flow.in + flow.library_in;
    busiest = std::max({busiest, out, in});
    cost.bridge = std::max({cost.bridge, flow.out, flow.in});
    uplinks = std::max({uplinks, of_all(out) + flow.once_out, of_all(in) + flow.once_in});
    if (uplink < std::ssize(topology.hosts())) continue;
    // A phase over a zone's uplink takes longer than the same messages at the NICs of a host.
    int64_t at_nics = 0;
    for (const auto& [host, messages] : traffic) {
      const auto own = messages.flows.find(uplink);
      if (own == messages.flows.end()) continue;
      const int64_t most = std::max(own->second.out, own->second.in);
      at_nics = std::max(at_nics, scaled(most, step_cost.rate(uplink), step_cost.rate(host)));
    }
    waits = std::max(waits, std::max(flow.out, flow.in) - at_nics);
  }
  crossing += waits;
  cost.island = occupied;
  cost.staging = of_all(cost.staging);
  cost.bridge = of_all(cost.bridge);
  cost.bridge_bytes = of_all(cost.bridge_bytes);
  cost.total =
      std::max({occupied, uplinks, serial + crossing + passing + of_all(busiest) - busiest});
  return cost;
}

}  // namespace hetcomm
