#pragma once

#include <memory>
#include <optional>

#include "exec/device_steps.h"
#include "exec/feedback.h"

namespace hetcomm {

// The part of a run that needs a device: scratch and staging, the order among the user's streams,
// and the steps that the device carries out. Owned by a run whose buffers are device memory.
class DeviceRun {
 public:
  explicit DeviceRun(std::shared_ptr<Device> device);
  ~DeviceRun();
  DeviceRun(const DeviceRun&) = delete;

  // Before the run starts: the work of `stream` so far fills the buffers. `captured`: the stream is
  // being captured into a graph, and so is the run.
  Status await_stream(Stream stream, bool captured);
  bool captured() const { return captured_; }
  // Numbers the threads of this process. Calls of native libraries keep the order of their thread.
  uint32_t thread() const { return thread_; }
  // Before the run starts, without the lock: allocates memory, makes events and compiles kernels;
  // for each plan that may run. A runtime may wait for all work of its device meanwhile. The
  // residual may be null. Throws Error(vendor), and Error(timeout) as Residual does.
  void prepare(const Plan& plan, const DeviceKernels* kernels, std::shared_ptr<Residual> residual);

  // The following members need the executor's lock.
  void start(const Plan& plan, Streams& streams) {
    steps_.emplace(plan, streams, filled_, events_);
    if (captured_ && plan.steps.empty()) end_at(filled_);
  }
  std::byte* scratch() const { return scratch_.data(); }
  std::byte* staging() const { return staging_.data(); }
  float* residual() const { return values_; }  // where the steps of the plan update it
  MemoryKind memory() const { return device_->memory(); }
  DeviceSteps& steps() { return *steps_; }

  // Whether the buffers are filled. Streams wait for this by themselves; a transport cannot wait,
  // so messages of device memory are posted afterwards.
  bool filled(Status& status);
  bool behind_stream() const;  // the work that fills the buffers is not over
  // A device works for the run.
  bool busy() const { return steps_ && (!steps_->idle() || awaits_fill_); }
  // The device has released the buffers.
  bool released() const { return !steps_ || (steps_->idle() && !steps_->lost()); }
  void release_memory();
  void abandon_memory();  // never releases the memory, because the device may still use it

  // The work of a captured run ends within the graph at this event.
  void end_at(Event event) { end_in_graph_ = event; }
  Event end_in_graph() const { return end_in_graph_; }
  bool capturing(Stream stream) const { return device_->capturing(stream); }
  Status block_stream(Stream stream, Event event) { return device_->wait(stream, event); }

 private:
  const std::shared_ptr<Device> device_;
  Event filled_ = nullptr;  // on the stream that fills the buffers
  bool awaits_fill_ = false;
  std::vector<Event> events_;  // for the steps on the device
  bool captured_ = false;
  const uint32_t thread_;         // that submits the run
  Event end_in_graph_ = nullptr;  // owned by this, the steps or the engine
  DeviceBlock scratch_, staging_;
  std::shared_ptr<Residual> residual_;  // whose values are in device memory
  float* values_ = nullptr;
  std::optional<DeviceSteps> steps_;
};

}  // namespace hetcomm
