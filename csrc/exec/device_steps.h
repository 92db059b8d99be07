#pragma once

#include <vector>

#include "exec/local_steps.h"
#include "exec/streams.h"

namespace hetcomm {

// The steps of one run that its rank's device carries out: copies between device memory and pinned
// host memory (staging), and work inside the device. A step starts at once, in order on its stream,
// and is over when poll() says so. Owned by a run; used under the executor's lock.
class DeviceSteps final : public Processor {
 public:
  // `filled`: nothing starts before this event has passed; null if nothing needs to.
  DeviceSteps(const Plan& plan, Streams& streams, Event filled)
      : plan_(plan), streams_(streams), filled_(filled) {}
  ~DeviceSteps() override;
  DeviceSteps(const DeviceSteps&) = delete;

  // Enqueues a step of the plan.
  Status start(int index, const Operands& operands);
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
  Status copy(const Step& step, const Operands& operands) override;
  Status reduce(const Step& step, const Operands& operands) override;

  const Plan& plan_;
  Streams& streams_;
  Stream enqueued_ = nullptr;  // where the step that starts was put
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
