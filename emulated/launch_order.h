#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "emulated/place.h"
#include "emulated/sockets.h"
#include "emulated/stream.h"

namespace hetcomm::emulated {

constexpr int kMostMembers = 16;  // of a communicator whose deadlocks are noticed

// The calls of one group to one communicator, as other processes read them.
struct Launch {
  uint8_t magic[16] = {};  // of the communicator
  uint32_t sequence = 0;   // of the last collective; 0: messages alone
  uint16_t kind = 0;       // CallKind of the last call
  int16_t rank = 0;
  int32_t size = 0;
  uint32_t awaited = 0;  // bits of the members whose part the calls need; none for large groups
  Place members[kMostMembers];
};

// With HETCOMM_EMULATED_HOSTILE=order, a device performs the calls of its communicators one after
// another, in the order of their launches. NCCL promises no more: kernels of several communicators
// need not fit on a device at the same time. If members launch calls of several communicators in
// different orders, their devices wait for each other. A thread notices such a circle after the
// bound, prints the launches of all devices in it, and fails a communicator. Thread-safe.
class LaunchOrder {
 public:
  // Tells a communicator of its failure, unless it is gone.
  using Report = std::function<void(const std::string& text)>;

  static LaunchOrder& of(int device);

  // Adds the operation to the stream, to be performed in its turn. It is dropped after the abort.
  void enqueue(Stream& stream, const Launch& launch, std::shared_ptr<Abort> abort, Report report,
               Operation operation);
  // The same, for an operation that a graph performs now.
  Operation in_turn(const Launch& launch, std::shared_ptr<Abort> abort, Report report,
                    Operation operation);

 private:
  friend class LaunchWatch;
  using Clock = std::chrono::steady_clock;
  struct Entry {
    uint64_t ticket;
    Launch launch;
    Report report;
  };
  class Turn;  // from launch to end

  explicit LaunchOrder(int device) : device_(device) {}
  Operation add(const Launch& launch, std::shared_ptr<Abort> abort, Report report,
                Operation operation);
  bool await(uint64_t ticket, const Abort& abort);
  void end(uint64_t ticket);
  void publish();
  Report overdue(Clock::time_point now);  // of the call under way, once for each call

  const int device_;
  std::mutex launching_;  // tickets follow the order in which streams get the operations
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> entries_;  // the first one is under way
  Clock::time_point began_{};
  bool told_ = false;  // of the call under way
  uint64_t tickets_ = 0;
};

}  // namespace hetcomm::emulated
