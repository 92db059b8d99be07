#include "exec/executor.h"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <random>

#include "base/config.h"
#include "exec/callbacks.h"
#include "exec/eventfd.h"

namespace hetcomm {
namespace {

sockaddr_un abstract_address(const std::string& name, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t bytes = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), bytes);
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  return address;
}

void add_to(int epoll, int descriptor) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = descriptor;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) != 0) {
    const char* remedy = errno == ENOSPC ? "; raise fs.epoll.max_user_watches" : "";
    throw Error(Code::transport, std::string("epoll_ctl: ") + std::strerror(errno) + remedy);
  }
}

}  // namespace

Executor::Executor(std::unique_ptr<Transport> transport, Status no_transport, MakeTransports make)
    : no_transport_(std::move(no_transport)),
      data_events_(epoll_create1(EPOLL_CLOEXEC)),
      transports_(std::move(transport), std::move(make),
                  [this](int descriptor) { add_to(data_events_, descriptor); }) {
  std::random_device random;
  wake_address_ = "hetcomm-" + std::to_string(getpid()) + "-" + std::to_string(random()) +
                  std::to_string(random());
  wake_socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  socklen_t length;
  sockaddr_un address = abstract_address(wake_address_, length);
  if (wake_socket_ < 0 || bind(wake_socket_, reinterpret_cast<sockaddr*>(&address), length) != 0) {
    throw Error(Code::transport, std::string("cannot make the wake-up socket: ") +
                                     std::strerror(errno) + "; raise the descriptor limit");
  }
  news_ = make_eventfd();
  kick_ = make_eventfd();
  control_events_ = epoll_create1(EPOLL_CLOEXEC);
  add_to(data_events_, wake_socket_);
  add_to(data_events_, news_);
  add_to(control_events_, kick_);
  thread_ = std::thread([this] { loop(); });
}

void Executor::stop() {
  stop_ = true;
  kick();
  if (thread_.joinable()) thread_.join();
  {
    std::lock_guard lock(deputy_mutex_);
    deputy_news_.notify_all();
  }
  if (deputy_.joinable()) deputy_.join();
}

Executor::~Executor() {
  stop();
  for (int descriptor : {data_events_, control_events_, wake_socket_, news_, kick_}) {
    close(descriptor);
  }
}

Transport* Executor::ip_transport() {
  const auto held = lock();
  return transports_.over_ip();
}

Transport* Executor::nic_transport(const std::string& interface) {
  const auto held = lock();
  return transports_.over(interface);
}

Transport* Executor::rails(const Transports::Nics& nics) {
  const auto held = lock();
  return transports_.rails(nics, Paths::kPart);
}

void Executor::wake(const std::string& address) const {
  socklen_t length;
  sockaddr_un to = abstract_address(address, length);
  const char token = 0;
  sendto(wake_socket_, &token, 1, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&to), length);
}

void Executor::attach(std::shared_ptr<RunQueue> queue) {
  const auto held = lock();
  Island* island = queue->paths->island();
  queue->lane_busy.assign(island ? island->lanes() : 4, false);
  Streams* streams = queue->paths->streams();
  if (streams && streams->device()->memory() != MemoryKind::host) reached_ = streams->device();
  queue->paths->launch_by(
      [this, queue = queue.get()](const std::function<void()>& call) { launch(*queue, call); });
  queues_.push_back(std::move(queue));
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

std::unique_lock<std::mutex> Executor::lock() {
  if (std::unique_lock held(mutex_, std::try_to_lock); held) return held;
  ++contenders_;
  std::unique_lock held(mutex_);
  --contenders_;
  return held;
}

std::vector<std::shared_ptr<Run>> Executor::submit(RunQueue& queue, std::shared_ptr<Run> run,
                                                   bool will_wait,
                                                   std::unique_lock<std::mutex> held) {
  Completed completed;
  if (!held) held = lock();
  ++runs_;
  idle_rounds_ = 0;
  if (!queue.failure.ok()) {
    run->fail(queue.failure);
    completed.push_back(run);
    --runs_;
  } else if (is_message(run->plan().spec.collective)) {
    queue.messages.push_back(run);
  } else {
    queue.pending.push_back(run);
  }
  // To the progress thread.
  const bool left = !will_wait && waiters_.load() == 0 && queue.failure.ok() && run->keeps_caller();
  if (queue.paths->streams()) run->begin_timeout();  // others may see it while it is launched
  if (run->recorded()) recorded_here = run.get();
  if (!left) progress_queue(queue, completed);
  if (run->recorded()) recorded_here = nullptr;
  if (!queue.paths->streams() && !run->finished()) run->begin_timeout();
  held.unlock();
  const bool finished = std::find(completed.begin(), completed.end(), run) != completed.end();
  if (!will_wait && !finished && waiters_.load() == 0) kick();
  if (left && sleepers_.load() > 0) signal_eventfd(news_);
  return completed;
}

Run::Aftermath Executor::announce(std::vector<std::shared_ptr<Run>>& completed,
                                  const Run* awaited) {
  Run::Aftermath own;
  for (auto& run : completed) {
    Run::Aftermath left = run->announce();
    if (left.empty()) continue;
    if (run.get() == awaited && left.listeners.empty()) {
      own = std::move(left);
      continue;
    }
    run_callback([left = std::move(left), status = run->status()]() mutable {
      for (auto& listener : left.listeners) listener(status);
      left = {};
    });
  }
  if (!completed.empty() && sleepers_.load() > 0) signal_eventfd(news_);
  completed.clear();
  return own;
}

void Executor::start(RunQueue& queue, Run& run, int lane) {
  try {
    run.start(*queue.paths, lane);
  } catch (const std::bad_alloc&) {
    run.fail(Status(Code::aborted, run.describe() + ": no memory for its scratch of " +
                                       format_bytes(run.scratch_bytes()) +
                                       "; free some, or use smaller tensors"));
  } catch (const Error& error) {
    run.fail(error.status());
  }
}

void Executor::activate(RunQueue& queue) {
  const Island* island = queue.paths->island();
  while (!queue.pending.empty() && queue.failure.ok()) {
    // The order of calls in an engine's stream must be that of all members: one run after another.
    if (island && island->stream() && !queue.active.empty()) {
      const auto last = std::find_if(queue.active.rbegin(), queue.active.rend(),
                                     [](const auto& run) { return run->lane() >= 0; });
      if (last != queue.active.rend() && !(*last)->begun()) return;
    }
    // Into the stream of the thread that records.
    Run& next = *queue.pending.front();
    if (next.recorded() && &next != recorded_here) return;
    const int lane = static_cast<int>(next.call().sequence % queue.lane_busy.size());
    if (queue.lane_busy[lane]) return;
    queue.lane_busy[lane] = true;
    queue.active.push_back(std::move(queue.pending.front()));
    queue.pending.pop_front();
    start(queue, next, lane);
    if (island && island->stream()) next.progress();  // puts its calls into the stream
  }
}

// Messages from one rank to another keep their order: one whose parts follow only as they are
// copied from a device holds up those behind it.
void Executor::activate_messages(RunQueue& queue) {
  if (queue.messages.empty() || !queue.failure.ok()) return;
  std::vector<std::pair<Collective, int>> held_up;
  auto way = [](const Run& run) {
    return std::pair(run.plan().spec.collective, run.plan().spec.root);
  };
  for (const auto& run : queue.active) {
    if (!run->posted()) held_up.push_back(way(*run));
  }
  std::erase_if(queue.messages, [&](const std::shared_ptr<Run>& run) {
    if (!run->find_sender(*queue.paths)) {
      messages_ = true;  // it may come any time
      return false;
    }
    const bool waits = std::find(held_up.begin(), held_up.end(), way(*run)) != held_up.end();
    if (!waits) {
      start(queue, *run, -1);
      run->progress();  // posts what can be posted at once
      queue.active.push_back(run);
    }
    if (waits || !run->posted()) held_up.push_back(way(*run));
    return !waits;
  });
}

bool Executor::progress_queue(RunQueue& queue, Completed& completed) {
  try {
    return try_progress(queue, completed);
  } catch (const std::exception& error) {
    give_up(queue, status_of(error), completed);
    return true;
  }
}

// The first time the runs of the queue fail as they always do; if that throws as well, they end as
// they stand.
void Executor::give_up(RunQueue& queue, const Status& status, Completed& completed) {
  if (queue.failure.ok()) {
    queue.failure = status;
    return;
  }
  try {
    while (!queue.active.empty()) {
      std::shared_ptr<Run>& run = queue.active.back();
      completed.reserve(completed.size() + 1);
      queue.unsettled.push_back(run);
      run->fail(queue.failure);
      if (!run->finished()) run->finish();
      completed.push_back(std::move(run));
      queue.active.pop_back();
      --runs_;
    }
  } catch (const std::exception&) {  // the next round goes on
  }
}

bool Executor::try_progress(RunQueue& queue, Completed& completed) {
  if (queue.launching) return false;
  bool moved = false;
  activate_messages(queue);
  activate(queue);
  for (size_t i = 0; i < queue.active.size();) {
    Run& run = *queue.active[i];
    moved |= run.progress();
    messages_ |= run.uses_network();
    device_work_ |= run.uses_device();
    in_the_way_ |= run.crowded();
    if (!run.finished()) {
      ++i;
      continue;
    }
    if (!run.status().ok() && queue.failure.ok()) queue.failure = run.status();
    if (run.lane() >= 0) queue.lane_busy[run.lane()] = false;
    if (run.unsettled()) queue.unsettled.push_back(queue.active[i]);
    completed.push_back(std::move(queue.active[i]));
    queue.active.erase(queue.active.begin() + static_cast<std::ptrdiff_t>(i));
    --runs_;
    moved = true;
  }
  if (!queue.failure.ok()) {
    for (auto& run : queue.active) run->fail(queue.failure);
    for (auto* waiting : {&queue.messages, &queue.pending}) {
      while (!waiting->empty()) {
        waiting->front()->fail(queue.failure);
        completed.push_back(waiting->front());
        waiting->pop_front();
        --runs_;
      }
    }
  }
  return moved;
}

bool Executor::progress_transports() {
  try {
    if (reached_) reached_->enter();
    return transports_.progress();
  } catch (const std::exception& error) {
    const Status status = status_of(error);
    for (auto& queue : queues_) {
      if (queue->failure.ok() && queue->paths->opened()) queue->failure = status;
    }
    return true;
  }
}

bool Executor::progress_all(Completed& completed) {
  bool moved = false;
  // The network costs a system call per look: look when a message is awaited, else now and then.
  if (network_ || (idle_rounds_ & 63) == 0) moved |= progress_transports();
  messages_ = device_work_ = in_the_way_ = false;
  // By index: a queue may come or go while launch() has let go of the lock.
  for (size_t i = 0; i < queues_.size(); ++i) moved |= progress_queue(*queues_[i], completed);
  network_.store(messages_, std::memory_order_relaxed);
  device_.store(device_work_, std::memory_order_relaxed);
  crowded_.store(in_the_way_, std::memory_order_relaxed);
  idle_rounds_ = moved ? 0 : idle_rounds_ + 1;
  if ((++rounds_ & 1023) == 0) check_deadlines(completed);
  return moved || !completed.empty();
}

void Executor::check_deadlines(Completed& completed) try {
  for (auto& queue : queues_) {
    if (!queue->failure.ok()) continue;
    const Run* overdue = nullptr;
    const auto look = [&](const auto& runs) {
      for (const auto& run : runs) {
        if (overdue == nullptr && run->deadline().passed()) overdue = run.get();
      }
    };
    look(queue->active);
    look(queue->messages);
    look(queue->pending);
    if (overdue != nullptr) {
      const std::string where = overdue->where();
      Status::Details details;
      details.code = Code::timeout;
      details.rank = queue->paths->rank();
      details.op = overdue->describe();
      details.message = "no completion within " + format_seconds(overdue->timeout()) +
                        (where.starts_with("waiting") ? ", " : ", waiting at ") + where +
                        "; a rank is late, gone, or made another call: look at the ranks named, or "
                        "raise the timeout";
      queue->failure = Status(details);
    }
    if (!queue->failure.ok()) {
      progress_queue(*queue, completed);
      kick();
    }
  }
} catch (const std::exception&) {  // no memory for what to say: the next look finds it again
}

bool Executor::any_active() const { return runs_.load(std::memory_order_relaxed) > 0; }

void Executor::fail(RunQueue& queue, const Status& status) {
  Completed completed;
  {
    const auto held = lock();
    if (queue.failure.ok()) queue.failure = status;
    progress_queue(queue, completed);
    progress_queue(queue, completed);  // what needed no draining is finished by now
    Island* island = queue.paths->island();
    if (island && !queue.launching) island->abandon(0);  // else with the run, once it is launched
  }
  announce(completed);
  kick();
}

void Executor::add(std::shared_ptr<Monitor> monitor) {
  std::lock_guard lock(monitor_mutex_);
  monitors_.push_back(std::move(monitor));
}

void Executor::watch(int descriptor) { add_to(control_events_, descriptor); }

void Executor::unwatch(int descriptor) {
  epoll_ctl(control_events_, EPOLL_CTL_DEL, descriptor, nullptr);
}

void Executor::remove(const Monitor* monitor) {
  std::lock_guard lock(monitor_mutex_);
  std::erase_if(monitors_, [monitor](const auto& one) { return one.get() == monitor; });
}

void Executor::kick() { signal_eventfd(kick_); }

}  // namespace hetcomm
