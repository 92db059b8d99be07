#include "exec/executor.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <random>

#include "base/config.h"
#include "base/events.h"
#include "base/log.h"
#include "base/system_text.h"
#include "exec/callbacks.h"

namespace hetcomm {
namespace {

constexpr int64_t kLibraryBound = 300;  // seconds
// No turn of a thread takes so long, but in a library that stands still.
constexpr auto kStopBound = std::chrono::seconds(5), kRemoveBound = std::chrono::seconds(5);

sockaddr_un abstract_address(const std::string& name, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t bytes = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), bytes);
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  return address;
}

}  // namespace

Executor::Executor(std::unique_ptr<Transports> transports)
    : library_bound_(setting("HETCOMM_LIBRARY_TIMEOUT", kLibraryBound, 0, 86'400)),
      data_events_(make_epoll()),
      control_events_(make_epoll()),
      wake_socket_(own_descriptor(socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0),
                                  "the wake-up socket")),
      completion_event_(make_eventfd()),
      progress_event_(make_eventfd()),
      transports_(std::move(transports)) {
  transports_->watch_by([this](int descriptor) { add_to_epoll(data_events_, descriptor); });
  std::random_device random;
  wake_address_ = "hetcomm-" + std::to_string(getpid()) + "-" + std::to_string(random()) +
                  std::to_string(random());
  socklen_t length;
  sockaddr_un address = abstract_address(wake_address_, length);
  if (bind(wake_socket_, reinterpret_cast<sockaddr*>(&address), length) != 0) {
    throw Error(Code::transport, system_text("cannot bind the wake-up socket: ", kReason));
  }
  add_to_epoll(data_events_, wake_socket_);
  add_to_epoll(data_events_, completion_event_);
  add_to_epoll(control_events_, progress_event_);
  thread_.start("hetcomm", [this] { loop(); });
}

bool Executor::stop() {
  const Deadline deadline(kStopBound);
  {
    std::lock_guard lock(deputy_mutex_);  // no helper starts afterwards
    stop_ = true;
    deputy_wanted_.notify_all();
    watcher_ends_.notify_all();
  }
  wake_progress_thread();
  bool all = true;
  for (BoundedThread* thread : {&thread_, &deputy_, &watcher_}) all &= thread->join(deadline);
  return all;
}

// The threads use the executor.
Executor::~Executor() {
  while (!stop()) log(LogLevel::warning, "waits for a thread that stands still in a library");
}

void Executor::wake(const std::string& address) const {
  socklen_t length;
  sockaddr_un to = abstract_address(address, length);
  const char token = 0;
  sendto(wake_socket_, &token, 1, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&to), length);
}

void Executor::attach(std::shared_ptr<RunQueue> queue, std::chrono::nanoseconds timeout) {
  const auto held = lock();
  Island* island = queue->paths->island();
  queue->lane_busy.assign(island ? island->lanes() : 4, false);
  Streams* streams = queue->paths->streams();
  if (streams) {
    start_helpers();
    if (streams->device()->memory() != MemoryKind::host) transport_device_ = streams->device();
  }
  queue->paths->launch_by(
      [this, queue = queue.get()](const std::function<void()>& call) { launch(*queue, call); });
  queues_.push_back(std::move(queue));
  note_timeout(timeout);
}

void Executor::detach(const std::shared_ptr<RunQueue>& queue) {
  Completed stranded;
  {
    const auto held = lock();
    std::erase(queues_, queue);
    stranded = queue->active;
    for (auto& run : stranded) run->finish();
    runs_ -= static_cast<int>(stranded.size());
  }
  announce(stranded);
}

Executor::Completed Executor::submit(RunQueue& queue, std::shared_ptr<Run> run, bool will_wait,
                                     std::unique_lock<std::mutex> held) {
  Completed completed;
  if (!held) held = lock();
  ++runs_;
  idle_rounds_ = 0;
  run->record_in(queue.recorder);
  note_timeout(run->timeout());
  if (!queue.failure.ok()) {
    run->fail(queue.failure);
    completed.push_back(run);
    --runs_;
  } else if (is_message(run->plan().spec.collective)) {
    queue.messages.push_back(run);
  } else {
    queue.pending.push_back(run);
  }
  const bool left_to_progress_thread =
      !will_wait && waiters_.load() == 0 && queue.failure.ok() && run->slow_to_start();
  // A launch releases the lock, and then other threads may check the deadline.
  if (queue.paths->streams()) run->begin_timeout();
  if (run->captured()) captured_here = run.get();
  if (!left_to_progress_thread) progress_queue(queue, completed);
  if (run->captured()) captured_here = nullptr;
  if (run->launches() && !run->launched()) unlaunched_.push_back(run);
  if (!queue.paths->streams() && !run->finished()) run->begin_timeout();
  held.unlock();
  const bool finished = std::find(completed.begin(), completed.end(), run) != completed.end();
  if (!will_wait && !finished && waiters_.load() == 0) wake_progress_thread();
  if (left_to_progress_thread && sleepers_.load() > 0) signal_eventfd(completion_event_);
  return completed;
}

void Executor::tell_failures(const Completed& completed) {
  if (std::all_of(completed.begin(), completed.end(),
                  [](const auto& run) { return run->status().ok(); })) {
    return;
  }
  std::vector<std::shared_ptr<Monitor>> tellers;
  {
    const auto held = lock_within(kLockBound);
    if (!held) return;  // the groups tell their failures at their next poll
    for (const auto& queue : queues_) {
      if (!queue->failure.ok()) tellers.push_back(queue->monitor.lock());
    }
  }
  for (const auto& teller : tellers) {
    if (teller) teller->tell_failure();
  }
}

Completion::Aftermath Executor::announce(Completed& completed, const Run* awaited) {
  tell_failures(completed);
  Completion::Aftermath own;
  for (auto& run : completed) {
    Completion::Aftermath left = run->announce();
    if (left.empty()) continue;
    if (run.get() == awaited && left.listeners.empty()) {
      own = std::move(left);
      continue;
    }
    run_callback([left = std::move(left), status = run->status()]() mutable {
      for (auto& listener : left.listeners) run_logged([&] { listener(status); });
      left = {};
    });
  }
  if (!completed.empty() && sleepers_.load() > 0) signal_eventfd(completion_event_);
  completed.clear();
  return own;
}

bool Executor::fail(RunQueue& queue, const Status& status, std::chrono::nanoseconds bound) {
  Completed completed;
  {
    const auto held = lock_within(bound);
    if (!held) return false;
    if (queue.failure.ok()) queue.failure = status;
    if (queue.paths) progress_queue(queue, completed);
    Island* island = queue.paths ? queue.paths->island() : nullptr;  // none in set-up
    if (island && !queue.launching) island->abandon(0);  // else with the run, once it is launched
  }
  announce(completed);
  if (const auto monitor = queue.monitor.lock()) monitor->tell_failure();  // also without runs
  wake_progress_thread();
  return true;
}

void Executor::add(std::shared_ptr<Monitor> monitor) {
  std::lock_guard lock(monitor_mutex_);
  monitors_.push_back(std::move(monitor));
}

// The descriptor may be a stranger's.
void Executor::watch(int descriptor) {
  try {
    add_to_epoll(control_events_, descriptor);
  } catch (const Error& error) {
    if (warned_of_watches_.exchange(true)) return;
    log(LogLevel::warning, error.what() + std::string("; news may come half a second late"));
  }
}

void Executor::unwatch(int descriptor) {
  epoll_ctl(control_events_, EPOLL_CTL_DEL, descriptor, nullptr);
}

bool Executor::remove(const Monitor* monitor) {
  const Deadline deadline(kRemoveBound);
  std::unique_lock lock(monitor_mutex_, std::try_to_lock);
  for (; !lock && !deadline.passed(); lock.try_lock()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!lock) return false;
  std::erase_if(monitors_, [monitor](const auto& one) { return one.get() == monitor; });
  return true;
}

void Executor::poll_by(Clock::time_point due) {
  auto next = next_poll_.load();
  while (due < next && !next_poll_.compare_exchange_weak(next, due)) {
  }
  if (due < next) wake_progress_thread();
}

void Executor::wake_progress_thread() { signal_eventfd(progress_event_); }

}  // namespace hetcomm
