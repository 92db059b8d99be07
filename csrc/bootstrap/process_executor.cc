#include "bootstrap/process_executor.h"

#include <map>
#include <mutex>
#include <vector>

#include "base/fork.h"
#include "base/log.h"
#include "exec/link_ends.h"
#include "topology/machine.h"
#include "transport/transports.h"

namespace hetcomm {
namespace {

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
  std::unique_ptr<Transports> transports;
  try {
    const std::vector<Nic> nics = choose_nics(Machine::current()).taken;
    transports = std::make_unique<Transports>(default_transports(), network_devices(nics));
  } catch (const Error& error) {
    transports = std::make_unique<Transports>(error.status());
    log(LogLevel::info, error.status().text());
  }
  auto executor = make_shared_of_process<Executor>(std::move(transports));
  executors.all[number] = executor;
  return executor;
}

void stop_process_executors() {
  auto& executors = of_process<Executors>();
  std::lock_guard lock(executors.mutex);
  for (const auto& [number, executor] : executors.all) executor->stop();
}

}  // namespace hetcomm
