#include "bootstrap/process_executor.h"

#include <map>
#include <mutex>
#include <vector>

#include "base/fork.h"
#include "base/log.h"
#include "health/dump_server.h"
#include "health/metrics.h"
#include "topology/machine.h"
#include "transport/transports.h"

namespace hetcomm {
namespace {

// Never destroyed, because the transport's library may end before static destructors run.
struct Executors {
  std::mutex mutex;
  std::map<int, std::shared_ptr<Executor>> all;  // by number
};

std::vector<NetworkDevice> network_devices() {
  std::vector<NetworkDevice> devices;
  for (const Nic& nic : choose_nics(Machine::current()).taken) {
    devices.push_back({nic.name, nic.interface, nic.address, nic.fabric == Fabric::ethernet});
  }
  return devices;
}

}  // namespace

std::shared_ptr<Executor> process_executor(int number) {
  auto& executors = of_process<Executors>();
  std::lock_guard lock(executors.mutex);
  if (const auto known = executors.all.find(number); known != executors.all.end()) {
    return known->second;
  }
  std::unique_ptr<Transports> transports;
  try {
    transports = std::make_unique<Transports>(default_transports(), network_devices());
  } catch (const Error& error) {
    transports = std::make_unique<Transports>(error.status());
    log(LogLevel::info, error.status().text());
  }
  auto executor = make_shared_of_process<Executor>(std::move(transports));
  if (number == 0) {
    serve_dumps(*executor);
    keep_metrics_file(*executor);
  }
  executors.all[number] = executor;
  return executor;
}

void stop_process_executors() {
  auto& executors = of_process<Executors>();
  std::lock_guard lock(executors.mutex);
  for (const auto& [number, executor] : executors.all) {
    if (executor->stop()) continue;
    log(LogLevel::warning,
        "a thread of hetcomm stands still in a library or a file system; the process ends without "
        "it");
  }
  remove_metrics_file();
}

}  // namespace hetcomm
