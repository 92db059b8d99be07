// How runs begin, move forward and fail, queue by queue.

#include <algorithm>
#include <utility>

#include "base/config.h"
#include "exec/executor.h"

namespace hetcomm {
namespace {

std::string in_words(const std::map<int, Clock::time_point>& silent) {
  std::string words;
  for (const auto& [rank, since] : silent) {
    words += "; " + describe_silence(rank, Clock::now() - since);
  }
  return words;
}

// An inquiry finds for whom the first collective waits. A later collective may be its occasion, and
// a message may wait for a device that is busy with this collective.
const RunQueue::Culprit* culprit_of(const RunQueue& queue, const Run& run) {
  const auto& culprit = queue.culprit;
  if (!culprit || Clock::now() >= culprit->until) return nullptr;
  const bool later = run.call().sequence > culprit->sequence;
  return later && !is_message(run.plan().spec.collective) ? nullptr : &*culprit;
}

std::string in_words(const RunQueue::Culprit* culprit) {
  if (culprit == nullptr) return "";
  return "; likely culprit " + format_seconds(Clock::now() - culprit->known) +
         " before: " + culprit->words;
}

std::string behind(const Run* earlier) {
  if (earlier == nullptr) return "";
  return ", behind an operation that this thread submitted before, " + earlier->describe() +
         " of a group on the same device, " + earlier->where();
}

// `named`: the message names a culprit.
std::string remedy(const Run& overdue, bool named) {
  if (!named && overdue.behind_stream()) return "; look at that work, or raise the timeout";
  return "; a rank is late, gone or stuck, or made another call: look at the ranks named, or raise "
         "the timeout";
}

}  // namespace

std::string describe_silence(int rank, std::chrono::duration<double> time) {
  return "rank " + std::to_string(rank) + " has given no sign of life for " + format_seconds(time) +
         ": it is stopped, in a debugger, inside a library that stands still, or short of "
         "processor time or memory";
}

void Executor::start(RunQueue& queue, Run& run, int lane) {
  try {
    run.start(*queue.paths, lane);
  } catch (const std::bad_alloc&) {
    run.fail(Status(Code::aborted,
                    run.describe() + ": no memory for its scratch of " +
                        format_bytes(run.plan().scratch_bytes + run.plan().staging_bytes) +
                        "; free some, or use smaller tensors"));
  } catch (const Error& error) {
    run.fail(error.status());
  }
}

// Groups that overlap need one order of their calls on all ranks: a native library's kernels may
// not run at the same time, and streams may share a queue. So a run begins once all calls and
// copies of the runs that its thread has submitted before are in streams, whatever their group.
// Returns the first run that holds up this one, or null. Runs of different threads have no common
// order.
const Run* Executor::held_by(const Run& run) const {
  if (!run.launches() || run.started()) return nullptr;
  for (const auto& earlier : unlaunched_) {
    if (earlier.get() == &run) break;
    if (earlier->same_thread(run) && !earlier->launched()) return earlier.get();
  }
  return nullptr;
}

void Executor::activate(RunQueue& queue) {
  const Island* island = queue.paths->island();
  while (!queue.pending.empty() && queue.failure.ok()) {
    // All members must put their calls into streams in one order: run after run.
    if (island && island->stream() && !queue.active.empty()) {
      const auto last = std::find_if(queue.active.rbegin(), queue.active.rend(),
                                     [](const auto& run) { return run->lane() >= 0; });
      if (last != queue.active.rend() && !(*last)->launched()) return;
    }
    // A captured run goes into the stream of the capturing thread.
    Run& next = *queue.pending.front();
    if (next.captured() && &next != captured_here) return;
    if (!next.decided()) return;
    if (held_by(next) != nullptr) {
      queue.held = true;
      return;
    }
    const bool needs_lane = !next.plan().steps.empty();
    const int lane =
        needs_lane ? static_cast<int>(next.call().sequence % queue.lane_busy.size()) : -1;
    if (needs_lane && queue.lane_busy[lane]) return;
    // Another group's operation may have taken the time of this one, and failed.
    if (std::exchange(queue.held, false)) next.begin_timeout();
    if (needs_lane) queue.lane_busy[lane] = true;
    queue.active.push_back(std::move(queue.pending.front()));
    queue.pending.pop_front();
    start(queue, next, lane);
    if (island && island->stream()) next.progress();  // puts the run's calls into the stream
  }
}

// Messages from one rank to another keep their order. A message whose parts are still copied from a
// device holds up later messages.
void Executor::activate_messages(RunQueue& queue) {
  if (queue.messages.empty() || !queue.failure.ok()) return;
  std::vector<std::pair<Collective, int>> held_up;
  auto direction_and_peer = [](const Run& run) {
    return std::pair(run.plan().spec.collective, run.plan().spec.root);
  };
  for (const auto& run : queue.active) {
    if (!run->posted()) held_up.push_back(direction_and_peer(*run));
  }
  std::erase_if(queue.messages, [&](const std::shared_ptr<Run>& run) {
    if (!run->find_sender(*queue.paths)) {
      round_.network = true;  // the message may arrive any time
      return false;
    }
    const auto key = direction_and_peer(*run);
    const bool waits = std::find(held_up.begin(), held_up.end(), key) != held_up.end();
    if (!waits) {
      start(queue, *run, -1);
      run->progress();  // posts messages
      queue.active.push_back(run);
    }
    if (waits || !run->posted()) held_up.push_back(key);
    return !waits;
  });
}

bool Executor::progress_queue(RunQueue& queue, Completed& completed) {
  try {
    return try_progress(queue, completed);
  } catch (...) {
    fail_queue(queue, status_of_caught(), completed);
    return true;
  }
}

// After the first exception the runs of the queue fail in the next round. After a second exception
// they end as they stand.
void Executor::fail_queue(RunQueue& queue, const Status& status, Completed& completed) {
  if (queue.failure.ok()) {
    queue.failure = status;
    return;
  }
  try {
    while (!queue.active.empty()) {
      std::shared_ptr<Run>& run = queue.active.back();
      completed.reserve(completed.size() + 1);
      queue.unreleased.push_back(run);
      run->fail(queue.failure);
      if (!run->finished()) run->finish();
      completed.push_back(std::move(run));
      queue.active.pop_back();
      --runs_;
    }
  } catch (...) {  // the next round goes on
    status_of_caught();
  }
}

bool Executor::try_progress(RunQueue& queue, Completed& completed) {
  if (queue.launching) return false;
  bool moved = false;
  activate_messages(queue);
  activate(queue);
  // After a failure no run begins a call of a native library. Such a call may last, and this thread
  // may hold the lock of the monitors.
  const Island* island = queue.paths->island();
  if (!queue.failure.ok() && island && island->stream()) {
    for (auto& run : queue.active) run->fail(queue.failure);
  }
  for (const auto& run : queue.active) {
    moved |= run->progress();
    if (run->disputed() && !std::exchange(queue.disputed, true)) wake_progress_thread();
    // At once, because a failing run closes links, and then other runs fail.
    if (!run->status().ok() && queue.failure.ok()) queue.failure = run->status();
    round_.network |= run->uses_network();
    round_.device |= run->uses_device();
    round_.same_processor |= run->awaits_same_processor();
  }
  if (!queue.failure.ok()) {
    for (auto& run : queue.active) run->fail(queue.failure);
  }
  moved |= reap(queue, completed);
  if (!unlaunched_.empty())
    std::erase_if(unlaunched_, [](const auto& run) { return run->launched(); });
  return moved;
}

// Takes finished runs out of the queue. A failed queue loses its waiting runs in the same round, so
// that all operations of a failed group end together.
bool Executor::reap(RunQueue& queue, Completed& completed) {
  const size_t before = completed.size();
  for (size_t i = 0; i < queue.active.size();) {
    std::shared_ptr<Run>& run = queue.active[i];
    if (!run->finished()) {
      ++i;
      continue;
    }
    if (run->lane() >= 0) queue.lane_busy[run->lane()] = false;
    if (run->unreleased()) queue.unreleased.push_back(run);
    completed.push_back(std::move(run));
    queue.active.erase(queue.active.begin() + static_cast<std::ptrdiff_t>(i));
    --runs_;
  }
  for (auto* waiting : {&queue.messages, &queue.pending}) {
    while (!queue.failure.ok() && !waiting->empty()) {
      waiting->front()->fail(queue.failure);
      completed.push_back(std::move(waiting->front()));
      waiting->pop_front();
      --runs_;
    }
  }
  return completed.size() > before;
}

bool Executor::progress_transports() {
  try {
    if (transport_device_) transport_device_->enter();
    return transports_->progress();
  } catch (...) {
    const Status status = status_of_caught();
    for (auto& queue : queues_) {
      if (queue->failure.ok() && queue->paths->opened()) queue->failure = status;
    }
    return true;
  }
}

bool Executor::progress_all(Completed& completed) {
  bool moved = false;
  // Polling the network costs a system call. Without an awaited message it is polled rarely.
  if (awaits_network_ || (idle_rounds_ & 63) == 0) moved |= progress_transports();
  round_ = {};
  // By index, because queues may come or go while launch() has released the lock.
  for (size_t i = 0; i < queues_.size(); ++i) moved |= progress_queue(*queues_[i], completed);
  awaits_network_.store(round_.network, std::memory_order_relaxed);
  awaits_device_.store(round_.device, std::memory_order_relaxed);
  awaits_same_processor_.store(round_.same_processor, std::memory_order_relaxed);
  idle_rounds_ = moved ? 0 : idle_rounds_ + 1;
  // Each idle round may yield, for milliseconds if other threads want the processor.
  const uint32_t round = rounds_.load(std::memory_order_relaxed) + 1;
  rounds_.store(round, std::memory_order_relaxed);
  if ((round & 1023) == 0 || (idle_rounds_ & 31) == 31) check_deadlines(completed);
  return moved || !completed.empty();
}

void Executor::check_deadlines(Completed& completed) try {
  // By index, because queues may come or go while launch() has released the lock.
  for (size_t i = 0; i < queues_.size(); ++i) {
    const auto queue = queues_[i];
    if (!queue->failure.ok()) continue;
    // Another group's operation may have failed just now, and frees this one.
    if (queue->held && !queue->pending.empty() && held_by(*queue->pending.front()) == nullptr) {
      queue->held = false;
      queue->pending.front()->begin_timeout();
    }
    const Run* overdue = nullptr;
    const auto look = [&](const auto& runs) {
      for (const auto& run : runs) {
        if (overdue != nullptr || !run->deadline().passed()) continue;
        const Run* earlier = held_by(*run);
        if (earlier == nullptr || !earlier->deadline().passed()) overdue = run.get();
      }
    };
    look(queue->active);
    look(queue->messages);
    look(queue->pending);
    if (overdue != nullptr) {
      const auto* culprit = culprit_of(*queue, *overdue);
      Status::Details details;
      details.code = Code::timeout;
      details.rank = queue->paths->rank();
      details.op = overdue->describe();
      details.message = "no completion within " + format_seconds(overdue->timeout()) + ", " +
                        overdue->where() + behind(held_by(*overdue)) + in_words(queue->silent) +
                        in_words(culprit) +
                        remedy(*overdue, culprit != nullptr || !queue->silent.empty());
      if (culprit != nullptr && queue->silent.empty()) details.peer = culprit->rank;
      if (queue->silent.size() == 1) details.peer = queue->silent.begin()->first;
      queue->failure = Status(details);
    }
    if (!queue->failure.ok()) {
      progress_queue(*queue, completed);
      wake_progress_thread();
    }
  }
} catch (const std::exception&) {  // no memory for the message; the next check tries again
}

}  // namespace hetcomm
