#include "exec/link_ends.h"

#include <algorithm>

#include "device/vendor.h"

namespace hetcomm {

LinkEnd link_end(const Topology& topology, int rank, int peer) {
  const RankInfo& info = topology.rank(rank);
  LinkEnd end;
  end.same_host = topology.same_host(rank, peer);
  end.avoids_rdma = topology.fabric_between(rank, peer) == Fabric::ethernet &&
                    std::any_of(info.nics.begin(), info.nics.end(),
                                [](const Nic& nic) { return nic.fabric != Fabric::ethernet; });
  for (const Rail& rail : topology.rails(rank, peer)) {
    end.stripes.push_back({info.nics[rail.own].interface, rail.bandwidth});
  }
  if (info.memory == Memory::device && !topology.staged(rank, peer)) {
    end.memory.push_back(find_vendor(info.vendor)->memory);
  }
  return end;
}

std::vector<LinkEnd> link_ends(const Topology& topology, int rank) {
  std::vector<LinkEnd> ends;
  for (int peer = 0; peer < topology.size(); ++peer) {
    if (peer != rank) ends.push_back(link_end(topology, rank, peer));
  }
  return ends;
}

std::vector<NetworkDevice> network_devices(const std::vector<Nic>& nics) {
  std::vector<NetworkDevice> devices;
  for (const Nic& nic : nics) {
    devices.push_back({nic.name, nic.interface, nic.address, nic.fabric == Fabric::ethernet});
  }
  return devices;
}

}  // namespace hetcomm
