#include "emulated/stream.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <map>
#include <thread>

#include "emulated/registry.h"

namespace hetcomm::emulated {

namespace {

std::shared_ptr<Stream> default_stream(int device) {
  static auto* mutex = new std::mutex;
  static auto* all = new std::map<int, std::shared_ptr<Stream>>;
  std::lock_guard lock(*mutex);
  std::shared_ptr<Stream>& stream = (*all)[device];
  if (stream == nullptr) {
    stream = std::make_shared<Stream>(device);
    registry<Stream>().add(stream);
  }
  return stream;
}

thread_local bool host_function = false;

}  // namespace

void* Stream::create(int device) {
  return registry<Stream>().add(std::make_shared<Stream>(device));
}

bool Stream::destroy(void* handle) {
  std::shared_ptr<Stream> stream = registry<Stream>().take(handle);
  if (stream == nullptr) return false;
  std::lock_guard lock(stream->mutex_);
  stream->destroyed_ = true;
  stream->changed_.notify_all();
  return true;
}

std::shared_ptr<Stream> Stream::find(void* handle, int device) {
  // 1 and 2 are cudaStreamLegacy and cudaStreamPerThread, and so in HIP.
  if (reinterpret_cast<uintptr_t>(handle) <= 2) return default_stream(device);
  return registry<Stream>().find(handle);
}

void Stream::synchronize_device(int device) {
  for (const std::shared_ptr<Stream>& stream : registry<Stream>().all()) {
    if (stream->device() == device) stream->synchronize();
  }
}

void Stream::enqueue(Operation operation) {
  std::lock_guard lock(mutex_);
  if (capture_ != nullptr) {
    return capture_->add(this, [operation = std::move(operation)] { return operation; });
  }
  operations_.push_back(std::move(operation));
  ++enqueued_;
  if (!running_) {
    running_ = true;
    std::thread([self = shared_from_this()] { self->run(); }).detach();
  }
  changed_.notify_all();
}

void Stream::enqueue_each(const Preparation& preparation) {
  if (std::shared_ptr<Capture> into = capture()) return into->add(this, preparation);
  enqueue(preparation());
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

void Stream::synchronize() {
  std::unique_lock lock(mutex_);
  uint64_t goal = enqueued_;
  changed_.wait(lock, [&] { return performed_ >= goal; });
}

void Stream::run() {
  pthread_setname_np(pthread_self(), "emulated stream");
  prctl(PR_SET_TIMERSLACK, 1000UL);  // copies and latencies are timed
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return !operations_.empty() || destroyed_; });
    if (operations_.empty()) return;
    Operation operation = std::move(operations_.front());
    operations_.pop_front();
    lock.unlock();
    operation();
    operation = nullptr;  // frees its captures before waiters wake
    lock.lock();
    ++performed_;
    changed_.notify_all();
  }
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
