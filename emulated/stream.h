#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "emulated/capture.h"
#include "emulated/copy_engine.h"

namespace hetcomm::emulated {

// The object behind cudaStream_t and hipStream_t: a queue of operations. One thread performs them
// in order; the first operation starts it. A destroyed stream performs its queue first.
// Thread-safe. Owned by the registry and the thread.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  explicit Stream(int device) : device_(device) {}

  static void* create(int device);
  static bool destroy(void* handle);
  // The default stream of `device` for null and the vendors' special handles; null if unknown.
  static std::shared_ptr<Stream> find(void* handle, int device);
  static void synchronize_device(int device);

  int device() const { return device_; }
  // Adds to the queue or, during a capture, to the graph. Each launch prepares its own operation.
  void enqueue(Operation operation);
  void enqueue_each(const Preparation& preparation);
  std::shared_ptr<Capture> capture();  // null: not captured
  void capture_into(std::shared_ptr<Capture> capture);
  static void end_capture(const Capture& capture);  // of all its streams
  bool idle();
  void synchronize();

 private:
  void run();

  const int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Capture> capture_;
  std::deque<Operation> operations_;
  uint64_t enqueued_ = 0;
  uint64_t performed_ = 0;
  bool running_ = false;    // the thread exists
  bool destroyed_ = false;  // the thread ends with an empty queue
};

// The object behind cudaEvent_t and hipEvent_t. Thread-safe.
class Event {
 public:
  // The nodes of a capture before a captured event; `capture` is null for other events.
  struct Recorded {
    std::shared_ptr<Capture> capture;
    std::vector<size_t> nodes;
  };

  uint64_t record();  // the number of this record, for pass()
  void record_captured(Recorded recorded);
  Recorded captured();
  void pass(uint64_t record);
  uint64_t latest();
  bool passed();  // whether the latest record has
  void wait(uint64_t record);
  // Between the times at which both passed last.
  static double milliseconds(Event& from, Event& to);

 private:
  using Clock = std::chrono::steady_clock;
  std::mutex mutex_;
  std::condition_variable changed_;
  Recorded captured_;
  uint64_t recorded_ = 0;
  uint64_t passed_ = 0;
  Clock::time_point passed_at_{};
};

enum class Direction { to_device, to_host };
CopyEngine& copy_engine(int device, Direction direction);

// Whether this thread is in a host function, which must not call the runtime.
bool in_host_function();
void run_host_function(void (*function)(void*), void* argument);

}  // namespace hetcomm::emulated
