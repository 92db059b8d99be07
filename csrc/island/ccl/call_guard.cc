#include "island/ccl/call_guard.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "base/deadline.h"
#include "base/log.h"
#include "base/status.h"
#include "island/ccl/detached.h"

namespace hetcomm {
namespace {

constexpr std::chrono::nanoseconds kLongestLook = std::chrono::seconds(1);

}  // namespace

struct CallGuard::State {
  std::atomic<uint64_t> calls{0};  // odd while one is under way
  std::atomic<bool> fired{false};
  std::chrono::nanoseconds bound;
  std::function<void()> overdue;
  // Of the watching thread: the number that it saw last, and how long it has seen that number.
  uint64_t seen = 0;
  std::chrono::nanoseconds watched{0};

  void look(std::chrono::nanoseconds elapsed) {
    const uint64_t now = calls.load(std::memory_order_acquire);
    if (now % 2 == 0 || now != seen) {
      seen = now;
      watched = {};
      return;
    }
    watched += elapsed;
    if (watched >= bound && !fired.exchange(true)) {
      try {
        Detached thread(overdue);
      } catch (const Error& error) {
        log(LogLevel::error, error.what());
      }
    }
  }
};

// Never destroyed: its thread may outlive static objects.
struct CallGuard::Watch {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::shared_ptr<State>> states;
  bool running = false;

  static Watch& process() {
    static auto* watch = new Watch;
    return *watch;
  }

  void run() {
    std::unique_lock lock(mutex);
    std::chrono::nanoseconds pause{0};
    for (auto last = Clock::now(); !states.empty();) {
      // A process that was stopped for longer could not return from its calls meanwhile.
      const auto now = Clock::now();
      const auto elapsed = std::min<std::chrono::nanoseconds>(now - last, 2 * pause);
      last = now;
      pause = kLongestLook;
      for (const auto& state : states) {
        state->look(elapsed);
        pause = std::min(pause, state->bound / 4);
      }
      changed.wait_for(lock, pause);
    }
    running = false;
  }
};

CallGuard::CallGuard(std::chrono::nanoseconds bound, std::function<void()> overdue)
    : state_(std::make_shared<State>()) {
  state_->bound = bound;
  state_->overdue = std::move(overdue);
  auto& watch = Watch::process();
  std::lock_guard lock(watch.mutex);
  if (!watch.running) Detached thread([&watch] { watch.run(); });
  watch.running = true;
  watch.states.push_back(state_);
  watch.changed.notify_all();
}

CallGuard::~CallGuard() {
  auto& watch = Watch::process();
  std::lock_guard lock(watch.mutex);
  std::erase(watch.states, state_);
  watch.changed.notify_all();
}

void CallGuard::enter() {
  state_->calls.store(state_->calls.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

void CallGuard::leave() { enter(); }

bool CallGuard::fired() const { return state_->fired.load(std::memory_order_acquire); }

}  // namespace hetcomm
