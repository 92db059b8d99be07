#include "emulated/stream.h"

#include <cstdio>
#include <map>

#include "emulated/registry.h"
#include "emulated/settings.h"

#define HETCOMM_EMULATED_QUOTED(text) #text
#define HETCOMM_EMULATED_TEXT(text) HETCOMM_EMULATED_QUOTED(text)

namespace hetcomm::emulated {

namespace {

std::shared_ptr<Stream> default_stream(int device) {
  static auto* mutex = new std::mutex;
  static auto* all = new std::map<int, std::shared_ptr<Stream>>;
  std::lock_guard lock(*mutex);
  std::shared_ptr<Stream>& stream = (*all)[device];
  if (stream == nullptr) {
    stream = std::make_shared<Stream>(device, Stream::Kind::legacy);
    registry<Stream>().add(stream);
  }
  return stream;
}

uint64_t next_number(int device) {
  static auto* mutex = new std::mutex;
  static auto* numbers = new std::map<int, uint64_t>;
  std::lock_guard lock(*mutex);
  return (*numbers)[device]++;
}

// Calls wait without end, as the vendors' do, unless the runtime is hostile.
std::chrono::steady_clock::time_point end_of_waiting() {
  if (!settings().hostile.any()) return std::chrono::steady_clock::time_point::max();
  return std::chrono::steady_clock::now() + settings().hostile.bound;
}

void report_deadlock(int device, const char* function) {
  std::fprintf(stderr,
               "hetcomm emulated %s: " HETCOMM_EMULATED_TEXT(HETCOMM_EMULATED_PREFIX) "%s has waited for "
               "work of device %d for %lld s; the queues of "
               "the device:%s\n",
               HETCOMM_EMULATED_VENDOR, function, device,
               static_cast<long long>(settings().hostile.bound.count()),
               describe_queues(device).c_str());
}

thread_local bool host_function = false;

}  // namespace

Stream::Stream(int device, Kind kind)
    : device_(device),
      kind_(kind),
      number_(next_number(device)),
      queue_(Queue::for_stream(device)) {}

void* Stream::create(int device, bool non_blocking) {
  const Kind kind = non_blocking ? Kind::non_blocking : Kind::blocking;
  return registry<Stream>().add(std::make_shared<Stream>(device, kind));
}

bool Stream::destroy(void* handle) { return registry<Stream>().take(handle) != nullptr; }

std::shared_ptr<Stream> Stream::find(void* handle, int device) {
  // 1 and 2 are cudaStreamLegacy and cudaStreamPerThread, and so in HIP.
  if (reinterpret_cast<uintptr_t>(handle) <= 2) return default_stream(device);
  return registry<Stream>().find(handle);
}

bool Stream::synchronize_device(int device, const char* function, bool passes_gates) {
  constexpr auto kLook = std::chrono::milliseconds(20);
  const auto until = end_of_waiting();
  std::vector<std::pair<std::shared_ptr<Stream>, uint64_t>> goals;
  for (const std::shared_ptr<Stream>& stream : registry<Stream>().all()) {
    if (stream->device() != device) continue;
    std::lock_guard lock(stream->mutex_);
    goals.emplace_back(stream, stream->enqueued_);
  }
  for (const auto& [stream, goal] : goals) {
    while (!stream->await(goal, passes_gates ? Clock::now() + kLook : until)) {
      if (passes_gates && any_at_gate(device)) return true;
      if (Clock::now() < until) continue;
      report_deadlock(device, function);
      return false;
    }
  }
  return true;
}

void Stream::enqueue(const char* name, Operation operation) {
  const bool between = settings().hostile.sync && kind_ == Kind::legacy && !capture();
  if (!between) return add(name, std::move(operation));
  std::vector<std::shared_ptr<Stream>> blocking;
  for (const std::shared_ptr<Stream>& stream : registry<Stream>().all()) {
    if (stream->device() == device_ && stream->kind_ == Kind::blocking && !stream->capture()) {
      blocking.push_back(stream);
    }
  }
  for (const auto& stream : blocking) wait_for(*stream);
  add(name, std::move(operation));
  for (const auto& stream : blocking) stream->wait_for(*this);
}

void Stream::wait_for(Stream& other) {
  const auto event = std::make_shared<Event>(device_);
  const uint64_t record = event->record();
  other.add("record", [event, record] { event->pass(record); });
  add("wait for the default stream", [event, record] { event->wait(record); });
}

void Stream::add(const char* name, Operation operation) {
  std::lock_guard lock(mutex_);
  if (capture_ != nullptr) {
    return capture_->add(this, [operation = std::move(operation)] { return operation; });
  }
  ++enqueued_;
  queue_->add(shared_from_this(), name, std::move(operation));
}

void Stream::enqueue_each(const char* name, const Preparation& preparation) {
  if (std::shared_ptr<Capture> into = capture()) return into->add(this, preparation);
  enqueue(name, preparation());
}

std::shared_ptr<Capture> Stream::capture() {
  std::lock_guard lock(mutex_);
  return capture_;
}

void Stream::capture_into(std::shared_ptr<Capture> capture) {
  std::lock_guard lock(mutex_);
  capture_ = std::move(capture);
}

void Stream::end_capture(const Capture& capture) {
  for (const std::shared_ptr<Stream>& stream : registry<Stream>().all()) {
    if (stream->capture().get() == &capture) stream->capture_into(nullptr);
  }
}

bool Stream::idle() {
  std::lock_guard lock(mutex_);
  return performed_ == enqueued_;
}

bool Stream::synchronize(const char* function) {
  uint64_t goal = 0;
  {
    std::lock_guard lock(mutex_);
    goal = enqueued_;
  }
  if (await(goal, end_of_waiting())) return true;
  report_deadlock(device_, function);
  return false;
}

bool Stream::await(uint64_t goal, Clock::time_point until) {
  std::unique_lock lock(mutex_);
  const auto reached = [&] { return performed_ >= goal; };
  if (until != Clock::time_point::max()) return changed_.wait_until(lock, until, reached);
  changed_.wait(lock, reached);
  return true;
}

void Stream::performed_one() {
  std::lock_guard lock(mutex_);
  ++performed_;
  changed_.notify_all();
}

uint64_t Stream::performed() {
  std::lock_guard lock(mutex_);
  return performed_;
}

uint64_t Event::record() {
  std::lock_guard lock(mutex_);
  captured_ = {};
  return ++recorded_;
}

void Event::record_captured(Recorded recorded) {
  std::lock_guard lock(mutex_);
  captured_ = std::move(recorded);
}

Event::Recorded Event::captured() {
  std::lock_guard lock(mutex_);
  return captured_;
}

void Event::pass(uint64_t record) {
  std::lock_guard lock(mutex_);
  if (record <= passed_) return;
  passed_ = record;
  passed_at_ = Clock::now();
  changed_.notify_all();
}

uint64_t Event::latest() {
  std::lock_guard lock(mutex_);
  return recorded_;
}

bool Event::passed() {
  std::lock_guard lock(mutex_);
  return passed_ >= recorded_;
}

void Event::wait(uint64_t record) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return passed_ >= record; });
}

bool Event::synchronize(const char* function) {
  const auto until = end_of_waiting();
  {
    std::unique_lock lock(mutex_);
    const uint64_t record = recorded_;
    const auto reached = [&] { return passed_ >= record; };
    if (until == Clock::time_point::max()) {
      changed_.wait(lock, reached);
      return true;
    }
    if (changed_.wait_until(lock, until, reached)) return true;
  }
  report_deadlock(device_, function);
  return false;
}

double Event::milliseconds(Event& from, Event& to) {
  auto time = [](Event& event) {
    std::lock_guard lock(event.mutex_);
    return event.passed_at_;
  };
  return std::chrono::duration<double, std::milli>(time(to) - time(from)).count();
}

CopyEngine& copy_engine(int device, Direction direction) {
  static auto* mutex = new std::mutex;
  static auto* engines = new std::map<std::pair<int, Direction>, CopyEngine>;
  std::lock_guard lock(*mutex);
  return (*engines)[{device, direction}];
}

bool in_host_function() { return host_function; }

void run_host_function(void (*function)(void*), void* argument) {
  host_function = true;
  function(argument);
  host_function = false;
}

}  // namespace hetcomm::emulated
