#include "emulated/queue.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <thread>
#include <vector>

#include "base/text.h"
#include "emulated/device_fault.h"
#include "emulated/hostile.h"
#include "emulated/settings.h"
#include "emulated/stream.h"

namespace hetcomm::emulated {

namespace {

constexpr size_t kListed = 8;  // operations of a description
constexpr auto kGate = std::chrono::milliseconds(100);

struct Queues {
  std::mutex mutex;
  std::map<int, std::vector<std::shared_ptr<Queue>>> shared;  // by device
  std::map<int, size_t> streams;                              // so far, by device
  std::map<int, std::vector<std::weak_ptr<Queue>>> all;
};

// Never destroyed: threads of queues may outlive static objects.
Queues& queues() {
  static auto* made = new Queues;
  return *made;
}

std::vector<std::shared_ptr<Queue>> queues_of(int device) {
  std::vector<std::shared_ptr<Queue>> found;
  std::lock_guard lock(queues().mutex);
  for (const auto& queue : queues().all[device]) {
    if (auto held = queue.lock()) found.push_back(std::move(held));
  }
  return found;
}

}  // namespace

std::shared_ptr<Queue> Queue::for_stream(int device) {
  Queues& known = queues();
  std::lock_guard lock(known.mutex);
  const auto number = static_cast<size_t>(settings().hostile.queues);
  auto& shared = known.shared[device];
  auto& all = known.all[device];
  if (number == 0 || shared.size() < number) {
    std::shared_ptr<Queue> made(new Queue(device, number > 0));
    std::erase_if(all, [](const auto& queue) { return queue.expired(); });
    all.push_back(made);
    if (number == 0) return made;
    shared.push_back(made);
  }
  return shared[known.streams[device]++ % number];
}

void Queue::add(std::shared_ptr<Stream> stream, const char* name, Operation operation) {
  std::lock_guard lock(mutex_);
  entries_.push_back({std::move(stream), name, std::move(operation)});
  if (!running_) {
    running_ = true;
    std::thread([self = shared_from_this()] { self->run(); }).detach();
  }
  changed_.notify_all();
}

void Queue::leave() {
  if (shared_) return;
  std::lock_guard lock(mutex_);
  left_ = true;
  changed_.notify_all();
}

void Queue::run() {
  pthread_setname_np(pthread_self(), "emulated stream");
  prctl(PR_SET_TIMERSLACK, 1000UL);  // copies and latencies are timed
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return !entries_.empty() || left_; });
    if (entries_.empty()) return;
    Entry& entry = entries_.front();  // stays where it is while others are added
    began_ = Clock::now();
    lock.unlock();
    perform(entry);
    lock.lock();
    Entry done = std::move(entry);
    entries_.pop_front();
    lock.unlock();
    done.operation = nullptr;  // frees its captures before waiters wake
    done.stream->performed_one();
    done.stream = nullptr;
    lock.lock();
  }
}

void Queue::perform(Entry& entry) {
  delay(entry.stream->number(), entry.stream->performed());
  if (DeviceFault::strikes(device_)) return;
  entry.operation();
}

std::string Queue::describe() {
  std::lock_guard lock(mutex_);
  if (entries_.empty()) return "";
  std::string text;
  for (size_t i = 0; i < std::min(entries_.size(), kListed); ++i) {
    const Entry& entry = entries_[i];
    text += (i == 0   ? "stream "
             : i == 1 ? "; behind it stream "
                      : ", stream ") +
            std::to_string(entry.stream->number()) + " '" + entry.name + "'";
    if (i > 0) continue;
    const std::chrono::duration<double> time = Clock::now() - began_;
    text += " for " + format_fixed(time.count(), 1) + " s";
  }
  return text + (entries_.size() > kListed ? ", ..." : "");
}

bool Queue::at_gate() {
  std::lock_guard lock(mutex_);
  return !entries_.empty() && std::string_view(entries_.front().name) == kHostFunction &&
         Clock::now() - began_ > kGate;
}

bool any_at_gate(int device) {
  const auto found = queues_of(device);
  return std::any_of(found.begin(), found.end(),
                     [](const auto& queue) { return queue->at_gate(); });
}

std::string describe_queues(int device) {
  const auto found = queues_of(device);
  std::string text;
  for (size_t i = 0; i < found.size(); ++i) {
    const std::string work = found[i]->describe();
    if (!work.empty()) text += "\n  queue " + std::to_string(i) + ": " + work;
  }
  return text;
}

}  // namespace hetcomm::emulated
