#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "exec/local_steps.h"
#include "exec/streams.h"

namespace hetcomm {

inline bool needs_device(const Step& step) {
  return step.kind->performer == Performer::rank && !step.in_staging() && step.target.count > 0;
}

// Carries out the steps of one run that need the device: copies between device memory and staging,
// and work inside the device. A step goes into its stream at once; poll() says when the step is
// complete. Owned by a run; used under the executor's lock.
class DeviceSteps final : public Processor {
 public:
  // No step starts before the event `filled`, if there is one. `events`: one for each step, because
  // making an event may wait for the device, and steps start under the executor's lock.
  DeviceSteps(const Plan& plan, Streams& streams, Event filled, std::vector<Event>& events)
      : plan_(plan),
        streams_(streams),
        device_(*streams.device()),
        left_(std::count_if(plan.steps.begin(), plan.steps.end(), needs_device)),
        filled_(filled),
        events_(events) {}
  ~DeviceSteps() override;
  DeviceSteps(const DeviceSteps&) = delete;

  // Enqueues a step of the plan.
  Status start(int index, const Operands& operands);
  // Has `stream` wait for `filled`, once.
  Status await_filled(Stream stream);
  // The step that was just started is part of a graph, and counts as complete. Within the graph the
  // returned event comes after the step. The event lasts as long as this object.
  Event leave_to_graph();
  // Appends complete steps to `over`; true if there were any.
  bool poll(std::vector<int>& over, Status& status);
  bool idle() const { return started_.empty(); }
  bool enqueued() const { return left_ == 0; }  // all steps of the plan
  int under_way() const { return static_cast<int>(started_.size()); }
  void append_under_way(std::vector<int>& steps) const {
    for (const Started& one : started_) steps.push_back(one.step);
  }
  // `stream` waits for all steps under way.
  Status block(Stream stream) const;
  // No event tells the end of some work, so the memory that it uses is never released.
  bool lost() const { return lost_; }

 private:
  struct Started {
    int step;
    Stream stream;
    Event event;
  };
  Status copy(const Step& step, const Operands& operands) override;
  Status reduce(const Step& step, const Operands& operands) override;
  Status encode(const Step& step, const Operands& operands) override;
  Status decode(const Step& step, const Operands& operands) override;
  Status enter_inside();  // the next step goes into the stream for work inside the device

  const Plan& plan_;
  Streams& streams_;
  Device& device_;             // a run may outlive the streams of its communicator
  int64_t left_;               // steps to enqueue
  Stream enqueued_ = nullptr;  // the stream of the newest step
  Event filled_;
  std::vector<Event>& events_;    // that no step uses yet
  std::vector<Stream> awaiting_;  // streams that wait for filled_
  std::vector<Started> started_;
  std::vector<Event> in_graph_;
  bool lost_ = false;
};

// Memory of a device, or host memory pinned for the device. The destructor returns the memory to
// its pool.
class DeviceBlock {
 public:
  DeviceBlock() = default;
  DeviceBlock(std::shared_ptr<Device> device, size_t bytes, bool pinned);  // throws Error(vendor)
  ~DeviceBlock();
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(DeviceBlock&& other) noexcept;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t bytes() const { return bytes_; }
  void abandon() { data_ = nullptr; }  // the device may still use the memory

 private:
  std::shared_ptr<Device> device_;
  size_t bytes_ = 0;
  void* data_ = nullptr;
  bool pinned_ = false;
};

}  // namespace hetcomm
