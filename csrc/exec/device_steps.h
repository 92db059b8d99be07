#pragma once

#include <vector>

#include "exec/streams.h"

namespace hetcomm {

// The steps of one run that its rank's device carries out by itself: copies between device memory
// ("home") and pinned host memory ("staging"), and inside the device. They start at once, in order
// on their stream, and are over when poll() says so. Owned by a run; used under the executor's
// lock.
class DeviceSteps {
 public:
  // `filled`: nothing starts before this event has passed; null if nothing needs to.
  DeviceSteps(Streams& streams, Event filled) : streams_(streams), filled_(filled) {}
  ~DeviceSteps();
  DeviceSteps(const DeviceSteps&) = delete;

  enum class Way { outward, inward, inner };  // home to staging, staging to home, home to home
  Status copy(int step, void* target, const void* source, size_t bytes, Way way);
  Status reduce(int step, Dtype dtype, ReduceOp op, void* target,
                const std::vector<const void*>& sources, size_t count);
  Status scale(int step, Dtype dtype, Scale by, void* target, const void* source, size_t count);
  // Has `stream` wait for `filled`, once.
  Status follow(Stream stream);
  // Of the step that was just started: it counts as over, since it is part of a graph, within which
  // this event comes after it. The event lives as long as this object.
  Event leave_to_graph();
  // Appends the steps that are over to `over`; true if there were any.
  bool poll(std::vector<int>& over, Status& status);
  bool idle() const { return started_.empty(); }
  // Something went on that no event tells the end of: its memory can never be given back.
  bool lost() const { return lost_; }

 private:
  struct Started {
    int step;
    Event event;
  };
  Device& device() const { return *streams_.device(); }
  Status started(int step, Stream stream);

  Streams& streams_;
  Event filled_;
  std::vector<Stream> following_;
  std::vector<Started> started_;
  std::vector<Event> in_graph_;
  bool lost_ = false;
};

// Memory of a device, or pinned for it, given back to its pool when nobody uses it any more.
class DeviceBlock {
 public:
  DeviceBlock() = default;
  DeviceBlock(std::shared_ptr<Device> device, size_t bytes, bool pinned);  // throws Error(vendor)
  ~DeviceBlock();
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(DeviceBlock&& other) noexcept;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  // The device may still use it: it is never given back.
  void abandon() { data_ = nullptr; }

 private:
  std::shared_ptr<Device> device_;
  void* data_ = nullptr;
  bool pinned_ = false;
};

}  // namespace hetcomm
