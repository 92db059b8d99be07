#include "bootstrap/process_executor.h"

#include <filesystem>
#include <map>
#include <mutex>
#include <vector>

#include "base/fork.h"
#include "base/log.h"
#include "topology/probe.h"
#include "transport/ucx/ucx.h"

namespace hetcomm {
namespace {

// What UCX may use, best first: RDMA devices that are really here (recorded or emulated facts may
// name others), and every interface for TCP.
std::vector<std::string> link_devices(const std::vector<Nic>& nics) {
  std::vector<std::string> devices, interfaces;
  for (const Nic& nic : nics) {
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

// For peers that no RDMA network leads to: plain Ethernet, else what carries an address.
std::unique_ptr<Transport> make_ip_transport(const std::vector<Nic>& nics) {
  std::vector<std::string> plain, others;
  for (const Nic& nic : nics) {
    if (nic.interface.empty() || nic.address.empty()) continue;
    (nic.fabric == Fabric::ethernet ? plain : others).push_back(nic.interface);
  }
  if (plain.empty() && others.empty()) {
    throw Error(Code::transport,
                "expected an interface with an IP address, because not all ranks share an RDMA "
                "network with this one; got none; give one an address, or name one in "
                "HETCOMM_SOCKET_IFNAME");
  }
  return make_ucx_transport(plain.empty() ? others : plain, false);
}

// By number; never destroyed, because the transport's library may be gone before static destructors
// run.
struct Executors {
  std::mutex mutex;
  std::map<int, std::shared_ptr<Executor>> all;
};

}  // namespace

std::shared_ptr<Executor> process_executor(int number) {
  auto& executors = of_process<Executors>();
  std::lock_guard lock(executors.mutex);
  if (const auto known = executors.all.find(number); known != executors.all.end()) {
    return known->second;
  }
  std::unique_ptr<Transport> transport;
  Status none;
  std::vector<Nic> nics;
  try {
    nics = probe_nics();
    transport = make_ucx_transport(link_devices(nics));
  } catch (const Error& error) {
    none = error.status();
    log(LogLevel::info, none.text());
  }
  const MakeTransports others{
      [nics] { return make_ip_transport(nics); },
      [](const std::string& interface) { return make_ucx_transport({interface}, /*rdma=*/false); },
  };
  auto executor = make_shared_of_process<Executor>(std::move(transport), none, others);
  executors.all[number] = executor;
  return executor;
}

void stop_process_executors() {
  auto& executors = of_process<Executors>();
  std::lock_guard lock(executors.mutex);
  for (const auto& [number, executor] : executors.all) executor->stop();
}

}  // namespace hetcomm
