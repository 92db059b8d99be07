#include "bootstrap/rail_probe.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <utility>

#include "base/system_text.h"
#include "health/socket_address.h"
#include "topology/rails.h"

namespace hetcomm {
namespace {

// Room for one lost packet, which the kernel sends again after a second.
constexpr auto kBound = std::chrono::milliseconds(1500);
constexpr const char* kNoAnswer = "no answer within 1.5 s";
constexpr size_t kMaxConcurrent = 64;
// A NIC that fails to more peers counts as broken itself. This bounds the probes and the warnings
// of a big job.
constexpr int kMaxFailures = 8;

class Probe {
 public:
  // `watched`: the connection stays, for RailWatch.
  Probe(FailedRail rail, std::string from, std::string to, uint64_t port, bool watched)
      : rail_(std::move(rail)),
        from_(std::move(from)),
        to_(std::move(to)),
        port_(port),
        watched_(watched) {}

  const FailedRail& rail() const { return rail_; }
  int descriptor() const { return descriptor_; }
  ProcessDescriptor release() { return std::move(descriptor_); }
  Clock::time_point end() const { return end_; }

  // True if the probe has ended already; see failed().
  bool begin(std::chrono::nanoseconds bound) {
    end_ = Clock::now() + bound;
    if (port_ == 0) {
      rail_.why = "the other end cannot listen there";
      return true;
    }
    SocketAddress from(from_, 0), to(to_, static_cast<uint16_t>(port_));
    descriptor_ = from.make_socket();
    if (descriptor_ >= 0 && bind(descriptor_, from.get(), from.length) == 0 &&
        ::connect(descriptor_, to.get(), to.length) == 0) {
      return true;
    }
    if (descriptor_ >= 0 && errno == EINPROGRESS) return false;
    rail_.why = system_text(kReason);
    return true;
  }
  // True if the probe has ended. `ready`: poll() reported an event.
  bool finished(bool ready) {
    if (ready) {
      if (const int error = take_error(descriptor_); error != 0) rail_.why = std::strerror(error);
    } else if (Clock::now() >= end_) {
      rail_.why = kNoAnswer;
      ready = true;
    }
    return ready;
  }
  bool failed() const { return !rail_.why.empty(); }
  bool watched() const { return watched_; }

 private:
  FailedRail rail_;
  std::string from_, to_;
  uint64_t port_;
  bool watched_;
  Clock::time_point end_;
  ProcessDescriptor descriptor_;
};

// This rank's share of the probes of its host.
std::deque<Probe> probes_of(const Topology& topology, int rank,
                            const std::vector<Member>& members) {
  const RankInfo& mine = topology.rank(rank);
  const int host = topology.host_of(rank);
  std::vector<int> alike;  // ranks that could make the same probes
  for (int other : topology.hosts()[host]) {
    const RankInfo& info = topology.rank(other);
    if (info.rails == mine.rails && info.nics == mine.nics) alike.push_back(other);
  }
  const size_t place = std::find(alike.begin(), alike.end(), rank) - alike.begin();
  std::deque<Probe> probes;
  size_t counted = 0;
  for (int there = 0; there < static_cast<int>(topology.hosts().size()); ++there) {
    // The rails by their two addresses, and the peers that have them with their ports.
    struct End {
      int peer;
      Rail rail;
      uint64_t port;
      bool watched;
    };
    std::map<std::pair<std::string, std::string>, std::vector<End>> ends;
    if (there == host) continue;
    for (int peer : topology.hosts()[there]) {
      const std::vector<Nic>& nics = topology.rank(peer).nics;
      const auto add = [&](const Rail& rail, bool watched) {
        const auto port = members[peer].rail_ports.find(rail.peer);
        ends[{mine.nics[rail.own].address, nics[rail.peer].address}].push_back(
            {peer, rail, port == members[peer].rail_ports.end() ? 0 : port->second, watched});
      };
      const std::vector<Rail> rails = topology.rails(rank, peer);
      for (const Rail& rail : rails) add(rail, true);
      const IpPath path = topology.ip_path(rank, peer);
      const bool is_rail = std::any_of(rails.begin(), rails.end(), [&](const Rail& rail) {
        return rail.own == path.own && rail.peer == path.peer;
      });
      const bool may_change = ip_nics(mine).size() + ip_nics(topology.rank(peer)).size() > 2;
      if (path.own < 0 || path.peer < 0 || is_rail || !may_change) continue;
      // The same host under two names has one address.
      if (mine.nics[path.own].address == nics[path.peer].address) continue;
      add({path.own, path.peer}, false);
    }
    if (ends.empty() || counted++ % alike.size() != place) continue;
    for (const auto& [addresses, peers] : ends) {
      const End& end = peers[host % peers.size()];  // not all to one listener
      probes.emplace_back(FailedRail{rank, end.rail.own, end.peer, end.rail.peer, ""},
                          addresses.first, addresses.second, end.port, end.watched);
    }
  }
  return probes;
}

// Waits until at least one probe has ended; removes and returns all that have ended.
std::vector<Probe> next_finished(std::vector<Probe>& under_way) {
  std::vector<pollfd> wanted;
  auto end = Clock::time_point::max();
  for (const Probe& probe : under_way) {
    wanted.push_back({probe.descriptor(), POLLOUT, 0});
    end = std::min(end, probe.end());
  }
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
  ::poll(wanted.data(), wanted.size(), static_cast<int>(std::max<int64_t>(wait, 0)));
  std::vector<Probe> finished, unfinished;
  for (size_t i = 0; i < under_way.size(); ++i) {
    const bool ended = under_way[i].finished(wanted[i].revents != 0);
    (ended ? finished : unfinished).push_back(std::move(under_way[i]));
  }
  under_way = std::move(unfinished);
  return finished;
}

}  // namespace

std::string end_of_rail(const Topology& topology, int rank, int nic) {
  const Nic& end = topology.rank(rank).nics.at(nic);
  return end.interface + " (" + end.address + ") of host " + topology.rank(rank).host_name;
}

RailEnds ends_of_rail(const Topology& topology, int rank, int nic, int peer, int peer_nic) {
  const Nic& own = topology.rank(rank).nics.at(nic);
  const Nic& other = topology.rank(peer).nics.at(peer_nic);
  return {own.subnet, own.address, other.address,
          end_of_rail(topology, rank, nic) + " does not reach " +
              end_of_rail(topology, peer, peer_nic)};
}

RailListeners::RailListeners(const RankInfo& mine) {
  std::map<std::string, uint64_t> ports;
  for (int nic : ip_nics(mine)) {
    const std::string& address = mine.nics[nic].address;
    if (const auto known = ports.find(address); known != ports.end()) {
      ports_[nic] = known->second;
      continue;
    }
    SocketAddress at(address, 0);
    const ProcessDescriptor& descriptor = descriptors_.emplace_back(at.make_socket(0));
    if (bind(descriptor, at.get(), at.length) == 0 && listen(descriptor, SOMAXCONN) == 0) {
      ports_[nic] = ports[address] = SocketAddress::port_of(descriptor);
    }
  }
}

std::vector<FailedRail> probe_rails(const Topology& topology, int rank,
                                    const std::vector<Member>& members, const Deadline& deadline,
                                    RailWatch& watch) {
  std::deque<Probe> waiting = probes_of(topology, rank, members);
  std::vector<Probe> under_way;
  std::vector<FailedRail> failed;
  std::map<int, int> failures;  // by own NIC
  auto conclude = [&](Probe& probe) {
    const FailedRail& rail = probe.rail();
    if (!probe.failed()) {
      if (!probe.watched()) return;
      watch.add(probe.release(),
                ends_of_rail(topology, rail.rank, rail.nic, rail.peer, rail.peer_nic));
      return;
    }
    if (++failures[rail.nic] > kMaxFailures + 1) return;
    failed.push_back(rail);
    if (failures[rail.nic] <= kMaxFailures) return;
    failed.back().peer = failed.back().peer_nic = FailedRail::kAnyPeer;
  };
  while (!waiting.empty() || !under_way.empty()) {
    while (!waiting.empty() && under_way.size() < kMaxConcurrent) {
      Probe next = std::move(waiting.front());
      waiting.pop_front();
      if (failures[next.rail().nic] > kMaxFailures) continue;
      if (next.begin(std::min<std::chrono::nanoseconds>(kBound, deadline.left() / 4))) {
        conclude(next);
      } else {
        under_way.push_back(std::move(next));
      }
    }
    if (under_way.empty()) continue;
    for (Probe& probe : next_finished(under_way)) conclude(probe);
  }
  return failed;
}

void FailedRail::pack(Packer& packer) const {
  for (int value : {rank, nic, peer, peer_nic}) {
    packer.put(static_cast<uint64_t>(static_cast<int64_t>(value)));
  }
  packer.put(why);
}

FailedRail FailedRail::unpack(Unpacker& from) {
  FailedRail failed;
  for (int* value : {&failed.rank, &failed.nic, &failed.peer, &failed.peer_nic}) {
    *value = static_cast<int>(static_cast<int64_t>(from.number()));
  }
  failed.why = from.text();
  return failed;
}

void FailedRail::check(const Topology& topology) const {
  const auto exists = [&](int end, int index) {
    return end >= 0 && end < topology.size() && index >= 0 &&
           index < static_cast<int>(topology.rank(end).nics.size());
  };
  const bool any = peer == kAnyPeer && peer_nic == kAnyPeer;
  if (exists(rank, nic) && (any || exists(peer, peer_nic))) return;
  throw Error(Code::invalid_argument,
              "a failed rail: expected NICs of ranks of the group, got NIC " + std::to_string(nic) +
                  " of rank " + std::to_string(rank) + " and NIC " + std::to_string(peer_nic) +
                  " of rank " + std::to_string(peer) +
                  "; run the same hetcomm version on every rank");
}

UnreachablePair FailedRail::unreachable(const Topology& topology) const {
  check(topology);
  const Nic& own = topology.rank(rank).nics.at(nic);
  if (peer == kAnyPeer) return {own.subnet, own.address, ""};
  return {own.subnet, own.address, topology.rank(peer).nics.at(peer_nic).address};
}

}  // namespace hetcomm
