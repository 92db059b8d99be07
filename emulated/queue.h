#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "emulated/capture.h"

namespace hetcomm::emulated {

class Stream;

constexpr const char* kHostFunction = "host function";

// A hardware queue of a device: one thread performs the operations of its streams in the order of
// submission. So an operation that waits holds up all streams of the queue. Each stream has a queue
// of its own, unless HETCOMM_EMULATED_HOSTILE gives the device a number of queues; streams then
// take these in turn. Thread-safe. Owned by its streams and its thread.
class Queue : public std::enable_shared_from_this<Queue> {
 public:
  static std::shared_ptr<Queue> for_stream(int device);

  void add(std::shared_ptr<Stream> stream, const char* name, Operation operation);
  // A stream is gone. The thread of a queue of one stream ends with its last operation.
  void leave();
  // "stream 3 'copy' for 2.1 s; behind it stream 4 'record', ..."; empty if it has no work
  std::string describe();
  bool at_gate();  // see the part `gates` of HETCOMM_EMULATED_HOSTILE

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    std::shared_ptr<Stream> stream;
    const char* name;
    Operation operation;
  };

  Queue(int device, bool shared) : device_(device), shared_(shared) {}
  void run();
  void perform(Entry& entry);

  const int device_;
  const bool shared_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> entries_;  // the first one is under way
  Clock::time_point began_{};  // the operation under way
  bool running_ = false;       // the thread exists
  bool left_ = false;
};

// The work of all queues of a device, for people.
std::string describe_queues(int device);
bool any_at_gate(int device);

}  // namespace hetcomm::emulated
