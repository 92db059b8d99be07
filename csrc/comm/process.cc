#include "comm/process.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>

#include "base/fork.h"
#include "base/log.h"
#include "comm/communicator.h"
#include "exec/callbacks.h"
#include "exec/link_ends.h"
#include "topology/probe.h"
#include "transport/transports.h"

namespace hetcomm {
namespace {

// Longer than leave() lasts.
constexpr std::chrono::seconds kLeaving{60};
// For the listeners that users have attached to operations.
constexpr std::chrono::seconds kCallbacks{5};

struct Communicators {
  std::mutex mutex;
  std::condition_variable left;
  std::set<Communicator*> live, leaving;
};

// By number; never destroyed, because the transport's library may be gone before static destructors
// run.
struct Executors {
  std::mutex mutex;
  std::map<int, std::shared_ptr<Executor>> all;
};

}  // namespace

void process::enter(Communicator* communicator) {
  auto& all = of_process<Communicators>();
  std::lock_guard lock(all.mutex);
  all.live.insert(communicator);
}

void process::exit(Communicator* communicator) {
  auto& all = of_process<Communicators>();
  std::unique_lock lock(all.mutex);
  all.live.erase(communicator);
  all.left.wait_for(lock, kLeaving, [&] { return !all.leaving.contains(communicator); });
}

void shut_down() {
  {
    auto& all = of_process<Communicators>();
    std::unique_lock lock(all.mutex);
    while (!all.live.empty()) {
      // Meanwhile another thread may destroy it; exit() lets it wait.
      const auto next = all.leaving.insert(all.live.extract(all.live.begin())).position;
      lock.unlock();
      (*next)->leave();
      lock.lock();
      all.leaving.erase(next);
      all.left.notify_all();
    }
  }
  finish_callbacks(kCallbacks);
  auto& executors = of_process<Executors>();
  std::lock_guard lock(executors.mutex);
  for (const auto& [number, executor] : executors.all) executor->stop();
}

std::shared_ptr<Executor> Executor::process(int number) {
  auto& executors = of_process<Executors>();
  std::lock_guard lock(executors.mutex);
  if (const auto known = executors.all.find(number); known != executors.all.end()) {
    return known->second;
  }
  std::unique_ptr<Transports> transports;
  try {
    transports = std::make_unique<Transports>(default_transports(), network_devices(probe_nics()));
  } catch (const Error& error) {
    transports = std::make_unique<Transports>(error.status());
    log(LogLevel::info, error.status().text());
  }
  auto executor = make_shared_of_process<Executor>(std::move(transports));
  executors.all[number] = executor;
  return executor;
}

}  // namespace hetcomm
