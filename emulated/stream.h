#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "emulated/capture.h"
#include "emulated/copy_engine.h"
#include "emulated/queue.h"

namespace hetcomm::emulated {

// The object behind cudaStream_t and hipStream_t: operations in order, which a hardware queue
// performs. A destroyed stream performs its operations first. Thread-safe. Owned by the registry
// and its queue.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  enum class Kind { legacy, blocking, non_blocking };
  Stream(int device, Kind kind);
  ~Stream() { queue_->leave(); }

  static void* create(int device, bool non_blocking);
  static bool destroy(void* handle);
  // The default stream of `device` for null and the vendors' special handles; null if unknown.
  static std::shared_ptr<Stream> find(void* handle, int device);
  // Waits for all work of the device so far. With the deadlocks that a hostile runtime causes, not
  // longer than the bound: it then prints the work of all queues, and returns false.
  // `passes_gates`: ends if the device stands at a gate of a test, see settings.h.
  static bool synchronize_device(int device, const char* function, bool passes_gates = false);

  int device() const { return device_; }
  uint64_t number() const { return number_; }  // of the device's streams, in the order of creation
  // Adds to the queue or, during a capture, to the graph. Each launch prepares its own operation.
  // The name is for people. Work of the legacy stream comes between that of blocking streams, if
  // HETCOMM_EMULATED_HOSTILE has `sync`.
  void enqueue(const char* name, Operation operation);
  void enqueue_each(const char* name, const Preparation& preparation);
  std::shared_ptr<Capture> capture();  // null: not captured
  void capture_into(std::shared_ptr<Capture> capture);
  static void end_capture(const Capture& capture);  // of all its streams
  bool idle();
  bool synchronize(const char* function);  // see synchronize_device()

  void performed_one();  // called by the queue
  uint64_t performed();

 private:
  using Clock = std::chrono::steady_clock;
  void add(const char* name, Operation operation);
  void wait_for(Stream& other);  // its work so far
  bool await(uint64_t goal, Clock::time_point until);

  const int device_;
  const Kind kind_;
  const uint64_t number_;
  const std::shared_ptr<Queue> queue_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Capture> capture_;
  uint64_t enqueued_ = 0;
  uint64_t performed_ = 0;
};

// The object behind cudaEvent_t and hipEvent_t. Thread-safe.
class Event {
 public:
  explicit Event(int device) : device_(device) {}

  // The nodes of a capture before a captured event; `capture` is null for other events.
  struct Recorded {
    std::shared_ptr<Capture> capture;
    std::vector<size_t> nodes;
  };

  int device() const { return device_; }
  uint64_t record();  // the number of this record, for pass()
  void record_captured(Recorded recorded);
  Recorded captured();
  void pass(uint64_t record);
  uint64_t latest();
  bool passed();  // whether the latest record has
  void wait(uint64_t record);
  // False if the bound of a hostile runtime ended the wait, see Stream::synchronize_device().
  bool synchronize(const char* function);
  // Between the times at which both passed last.
  static double milliseconds(Event& from, Event& to);

 private:
  using Clock = std::chrono::steady_clock;
  const int device_;  // current when it was made
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
