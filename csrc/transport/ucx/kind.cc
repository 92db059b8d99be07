// The registry's row of UCX.

#include <algorithm>
#include <filesystem>

#include "base/config.h"
#include "transport/transports.h"
#include "transport/ucx/settings.h"
#include "transport/ucx/ucx.h"

namespace hetcomm {
namespace {

// RDMA devices, then interfaces. Recorded or emulated facts may name devices that do not exist
// here.
std::vector<std::string> all_devices(const std::vector<NetworkDevice>& nics) {
  std::vector<std::string> devices, interfaces;
  for (const NetworkDevice& nic : nics) {
    if (nic.name != nic.interface &&
        std::filesystem::exists("/sys/class/infiniband/" +
                                nic.name.substr(0, nic.name.find(':')))) {
      devices.push_back(nic.name);
    }
    if (!nic.interface.empty()) interfaces.push_back(nic.interface);
  }
  devices.insert(devices.end(), interfaces.begin(), interfaces.end());
  return devices;
}

std::vector<std::string> ip_interfaces(const std::vector<NetworkDevice>& nics) {
  std::vector<std::string> plain, others;
  for (const NetworkDevice& nic : nics) {
    if (nic.interface.empty() || nic.address.empty()) continue;
    (nic.plain_ethernet ? plain : others).push_back(nic.interface);
  }
  if (plain.empty() && others.empty()) {
    throw Error(Code::transport,
                "expected an interface with an IP address, because not all ranks share an RDMA "
                "network with this one; got none; give one an address, or name one in "
                "HETCOMM_SOCKET_IFNAME");
  }
  return plain.empty() ? others : plain;
}

bool viable(const LinkEnd&, const LinkEnd&) { return true; }

LinkCost cost(const LinkEnd& here) {
  if (here.same_host) return {.latency = 1'000, .bandwidth = 10'000'000'000};
  return {.latency = 30'000,
          .bandwidth = here.stripes.empty() ? 125'000'000 : here.stripes[0].bandwidth};
}

// UCX takes some unreachable addresses for reachable, of RDMA ports and of interfaces. So links
// without a common RDMA network use a transport without RDMA ports. Links that one interface
// carries use a transport of this interface.
TransportId id(const LinkEnd& end) {
  if (!end.interface.empty()) {
    return {.kind = "ucx", .interfaces = {end.interface}, .rdma = false, .number = -1};
  }
  return {.kind = "ucx", .rdma = !end.avoids_rdma, .shared_memory = !end.over_ip};
}

bool has_rdma(const std::vector<NetworkDevice>& devices) {
  if (devices.empty()) return !rdma_devices().empty();  // UCX then takes all
  return std::any_of(devices.begin(), devices.end(),
                     [](const NetworkDevice& device) { return !device.plain_ethernet; });
}

std::unique_ptr<Transport> make(const TransportId& id, Transports& transports) {
  const std::vector<NetworkDevice>& devices = transports.devices();
  if (!id.rdma) {
    return make_ucx_transport(id.interfaces.empty() ? ip_interfaces(devices) : id.interfaces,
                              Carriers::tcp);
  }
  const Carriers inside = has_rdma(devices) ? Carriers::all : Carriers::all_but_tcp;
  return make_ucx_transport(id.interfaces.empty() ? all_devices(devices) : id.interfaces,
                            id.shared_memory ? inside : Carriers::all_but_shared_memory);
}

}  // namespace

bool user_chooses_ucx_devices() {
  return environment_variable("UCX_NET_DEVICES") || environment_variable("UCX_TLS");
}

const TransportKind& ucx_transport() {
  static const TransportKind kind = {
      .name = "ucx",
      .memory = {MemoryKind::host, MemoryKind::cuda, MemoryKind::rocm},
      .by_default = [] { return true; },
      .viable = viable,
      .cost = cost,
      .id = id,
      .parts = nullptr,
      .make = make,
      .remedy = "install libucx-cu13 there or set HETCOMM_UCX_LIBRARY",
  };
  return kind;
}

}  // namespace hetcomm
