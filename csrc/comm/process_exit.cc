#include "comm/process_exit.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>

#include "base/fork.h"
#include "bootstrap/process_executor.h"
#include "comm/communicator.h"
#include "exec/callbacks.h"

namespace hetcomm {
namespace {

// leave() takes less.
constexpr std::chrono::seconds kLeaving{60};
// The bound for listeners of users.
constexpr std::chrono::seconds kCallbacks{5};

struct Communicators {
  std::mutex mutex;
  std::condition_variable left;
  std::set<Communicator*> live, leaving;
};

}  // namespace

void process_exit::add(Communicator* communicator) {
  auto& all = of_process<Communicators>();
  std::lock_guard lock(all.mutex);
  all.live.insert(communicator);
}

void process_exit::remove(Communicator* communicator) {
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
      // Another thread that destroys the communicator meanwhile waits in remove().
      const auto next = all.leaving.insert(all.live.extract(all.live.begin())).position;
      lock.unlock();
      (*next)->leave();
      lock.lock();
      all.leaving.erase(next);
      all.left.notify_all();
    }
  }
  finish_callbacks(kCallbacks);
  stop_process_executors();
}

}  // namespace hetcomm
