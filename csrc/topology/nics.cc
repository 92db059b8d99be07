#include <algorithm>
#include <tuple>

#include "base/rate.h"
#include "base/status.h"
#include "topology/candidate.h"
#include "topology/sysfs.h"

namespace hetcomm {
namespace {

std::string describe(const Nic& nic) {
  std::string text = std::string(name(nic.fabric)) + ", " + rate_text(nic.bandwidth);
  if (!nic.bandwidth_known) text += " (assumed: the driver reports none for it alone)";
  if (nic.numa >= 0) text += ", NUMA node " + std::to_string(nic.numa);
  if (!nic.interface.empty() && nic.interface != nic.name) text += ", interface " + nic.interface;
  text += ", " + (nic.address.empty() ? "no IP address" : nic.address);
  if (nic.gid >= 0) text += ", GID " + std::to_string(nic.gid) + " (RoCE v2)";
  if (nic.subnet.empty()) return text;
  return text + (nic.fabric == Fabric::infiniband ? ", subnet " : ", network ") + nic.subnet;
}

// The order in which NICs are preferred.
bool is_better(const Machine& machine, const Nic& a, const Nic& b) {
  auto key = [&machine](const Nic& nic) {
    return std::make_tuple(nic.fabric == Fabric::ethernet, -nic.bandwidth,
                           machine.default_routes.count(nic.interface) == 0);
  };
  auto a_key = key(a), b_key = key(b);
  return a_key != b_key ? a_key < b_key : natural_less(a.name, b.name);
}

// The usable candidates of one requested name: a port may be named by its interface.
std::vector<Candidate> find_requested(const std::vector<Candidate>& candidates,
                                      const std::string& requested) {
  std::vector<Candidate> usable;
  std::string why, known;
  for (const Candidate& candidate : candidates) {
    known += (known.empty() ? "" : ", ") + candidate.nic.name;
    if (candidate.nic.name != requested && candidate.nic.interface != requested) continue;
    if (candidate.standing != Standing::unusable) {
      usable.push_back(candidate);
    } else if (why.empty() || candidate.nic.name == requested) {
      why = candidate.nic.name + ": " + candidate.reason;
    }
  }
  if (usable.empty()) {
    throw Error(Code::invalid_argument,
                "HETCOMM_SOCKET_IFNAME: expected names of " +
                    (why.empty() ? "existing interfaces (" + known + ")" : "usable interfaces") +
                    ", got \"" + requested + "\"" + (why.empty() ? "" : " (" + why + ")") +
                    "; correct or unset the variable");
  }
  return usable;
}

std::vector<Nic> take_requested(const Machine& machine, const std::vector<Candidate>& candidates) {
  std::vector<Nic> taken;
  for (const std::string& requested : machine.requested) {
    for (const Candidate& candidate : find_requested(candidates, requested)) {
      bool is_new = std::none_of(taken.begin(), taken.end(),
                                 [&](const Nic& nic) { return nic.name == candidate.nic.name; });
      if (is_new) taken.push_back(candidate.nic);
    }
  }
  return taken;
}

// All candidates of the best standing among them.
std::vector<Nic> take_best(const Machine& machine, const std::vector<Candidate>& candidates) {
  Standing best = Standing::loopback;
  for (const Candidate& candidate : candidates) best = std::min(best, candidate.standing);
  std::vector<Nic> taken;
  for (const Candidate& candidate : candidates) {
    if (candidate.standing == best) taken.push_back(candidate.nic);
  }
  std::sort(taken.begin(), taken.end(),
            [&](const Nic& a, const Nic& b) { return is_better(machine, a, b); });
  return taken;
}

std::vector<std::string> explain(const Machine& machine, const std::vector<Candidate>& candidates,
                                 const std::vector<Nic>& taken) {
  std::vector<std::string> lines;
  auto find = [](auto& list, auto has_name) {
    return std::find_if(list.begin(), list.end(), has_name);
  };
  for (const Nic& nic : taken) {
    auto candidate = find(candidates, [&](const auto& c) { return c.nic.name == nic.name; });
    std::string line = nic.name + ": taken, " + describe(nic);
    if (!machine.requested.empty()) {
      line += "; HETCOMM_SOCKET_IFNAME asks for it";
    } else if (!candidate->reason.empty()) {
      line += "; " + candidate->reason + ", but nothing better can be used";
    }
    lines.push_back(line);
  }
  for (const Candidate& candidate : candidates) {
    const Nic& nic = candidate.nic;
    if (find(taken, [&](const Nic& t) { return t.name == nic.name; }) != taken.end()) continue;
    std::string reason = candidate.reason;
    if (candidate.standing != Standing::unusable && !machine.requested.empty()) {
      reason = "HETCOMM_SOCKET_IFNAME does not name it";
    } else if (candidate.standing == Standing::local) {
      reason += ", and there is a better one";
    }
    if (!candidate.remedy.empty()) reason += "; " + candidate.remedy;
    lines.push_back(nic.name + ": left out, " + reason);
  }
  return lines;
}

}  // namespace

NicChoice choose_nics(const Machine& machine) {
  std::vector<Candidate> candidates = find_rdma_ports(machine);
  std::vector<Candidate> interfaces = find_interfaces(machine, candidates);
  candidates.insert(candidates.end(), interfaces.begin(), interfaces.end());
  auto loopback = std::find_if(candidates.begin(), candidates.end(),
                               [](const Candidate& c) { return c.standing == Standing::loopback; });
  if (loopback == candidates.end()) {
    Candidate lo;
    lo.nic.name = lo.nic.interface = "lo";
    set_bandwidth(lo.nic, 0, assumed_bandwidth);
    lo.standing = Standing::loopback;
    lo.reason = "the loopback reaches this host only";
    loopback = candidates.insert(candidates.end(), lo);
  }
  if (loopback->nic.address.empty()) loopback->nic.address = "127.0.0.1";

  NicChoice choice;
  choice.taken = machine.requested.empty() ? take_best(machine, candidates)
                                           : take_requested(machine, candidates);
  choice.explanations = explain(machine, candidates, choice.taken);
  for (const Candidate& candidate : candidates) {
    if (candidate.remedy.empty()) continue;
    choice.warnings.push_back("RoCE port " + candidate.nic.name + " is not used for RoCE: " +
                              candidate.reason + "; " + candidate.remedy);
  }
  return choice;
}

}  // namespace hetcomm
