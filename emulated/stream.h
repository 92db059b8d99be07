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

// What cudaStream_t and hipStream_t point to: a queue of operations that one thread, started at the
// first of them, performs in order. Thread-safe. The registry and the thread own it; a destroyed
// stream first performs what it holds.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  explicit Stream(int device) : device_(device) {}

  static void* create(int device);
  static bool destroy(void* handle);
  // Null and the vendors' names for the default stream give that of `device`; unknown handles null.
  static std::shared_ptr<Stream> find(void* handle, int device);
  static void synchronize_device(int device);

  int device() const { return device_; }
  // Into the queue, or, while the stream is captured, into the graph: to be done at each launch.
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
  bool destroyed_ = false;  // the thread ends once nothing is left
};

// What cudaEvent_t and hipEvent_t point to. Thread-safe.
class Event {
 public:
  // What a captured event stands for; `capture` is null for others.
  struct Recorded {
    std::shared_ptr<Capture> capture;
    std::vector<size_t> nodes;
  };

  uint64_t record();  // the number of this record, for pass()
  void record_captured(Recorded recorded);
  Recorded captured();
  void pass(uint64_t record);
  uint64_t latest();
  bool passed();  // the latest record
  void wait(uint64_t record);
  // Between the latest passes of both.
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

// True in host functions, where the runtime must not be called.
bool in_host_function();
void run_host_function(void (*function)(void*), void* argument);

}  // namespace hetcomm::emulated
