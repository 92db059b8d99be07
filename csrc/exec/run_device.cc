// What a run does with a device's memory.

#include <algorithm>
#include <cstring>

#include "exec/run.h"

namespace hetcomm {

Run::~Run() {
  if (filled_ != nullptr) device_->destroy_event(filled_);
  if (!settled()) device_scratch_.abandon(), staging_.abandon();
}

Status Run::follow(Stream stream, bool recorded) {
  try {
    filled_ = device_->make_event();
  } catch (const Error& error) {
    return error.status();
  }
  recorded_ = recorded;
  return device_->record(filled_, stream);
}

void Run::prepare(const DeviceKernels* kernels) {
  const size_t scratch = static_cast<size_t>(plan_->scratch_count) * element_;
  const size_t staging = static_cast<size_t>(plan_->staging_count) * element_;
  if (scratch > 0) device_scratch_ = DeviceBlock(device_, scratch, false);
  if (staging > 0) staging_ = DeviceBlock(device_, staging, true);
  for (const Step& step : plan_->steps) {
    if (step.kind != StepKind::reduce || step.target.space == Space::staging) continue;
    const std::vector<const void*> none(step.sources.size());
    check(step.scaled ? kernels->scale(plan_->spec.dtype, scale(), nullptr, nullptr, 0, nullptr)
                      : kernels->reduce(plan_->spec.dtype, combining(plan_->spec.op), nullptr,
                                        none.data(), static_cast<int>(none.size()), 0, nullptr));
  }
}

// A run that is one call of an engine with a stream needs nothing of the host to be over.
Event Run::island_event() const {
  const bool one_call = active_island_ >= 0 && !launching_ && plan_->steps.size() == 1;
  return one_call ? paths_->island()->event(lane_) : nullptr;
}

bool Run::begun() const {
  const size_t left = plan_->schedule.island_steps.size() - next_island_;
  return left == 0 || (left == 1 && active_island_ >= 0 && paths_->island()->event(lane_));
}

Status Run::order(Stream stream) {
  if (recording_ != nullptr) return device_->wait(stream, recording_);
  if (finished_) return Status();
  if (device_->capturing(stream)) {
    return Status(Code::invalid_argument,
                  describe() +
                      ": expected an operation that is over before a graph is recorded that "
                      "waits for it; this one is under way; wait for it first");
  }
  if (Event event = island_event()) return device_->wait(stream, event);
  try {
    if (!over_) over_ = device_->make_flag();
  } catch (const Error& error) {
    return error.status();
  }
  return device_->wait(stream, over_);
}

void Run::start_copy(int index) {
  const Step& step = plan_->steps[index];
  const size_t bytes = static_cast<size_t>(step.target.count) * element_;
  const bool from_staging = step.sources[0].space == Space::staging;
  const bool to_staging = step.target.space == Space::staging;
  if (bytes == 0) return complete(index);
  if (!device_ || (from_staging && to_staging)) {
    std::memmove(address(step.target), address(step.sources[0]), bytes);
    return complete(index);
  }
  const auto way = to_staging     ? DeviceSteps::Way::outward
                   : from_staging ? DeviceSteps::Way::inward
                                  : DeviceSteps::Way::inner;
  const Status status =
      device_steps_->copy(index, address(step.target), address(step.sources[0]), bytes, way);
  if (!status.ok()) return fail(at_step(index, status));
  if (!recorded_) return;
  recording_ = device_steps_->leave_to_graph();
  complete(index);
}

bool Run::poll_device() {
  std::vector<int> over;
  Status status;
  const bool moved = device_steps_->poll(over, status);
  for (int index : over) complete(index);
  if (!status.ok()) fail(at_step(-1, status));
  return moved;
}

bool Run::settled() const {
  return in_flight_.empty() && !in_island_ &&
         (!device_steps_ || (device_steps_->idle() && !device_steps_->lost()));
}

bool Run::uses_device() const {
  return device_steps_ && (!device_steps_->idle() || active_island_ >= 0 || awaits_caller_);
}

// Streams wait by themselves until the caller's has filled the buffers; the transport cannot, and
// so must not be given home before.
bool Run::may_post(int index) {
  const Step& step = plan_->steps[index];
  const Range& range = step.kind == StepKind::send ? step.sources[0] : step.target;
  if (filled_ == nullptr || range.space == Space::staging) return true;
  Status status;
  awaits_caller_ = !device_->passed(filled_, status);
  if (!status.ok()) fail(at_step(index, status));
  return !awaits_caller_ && status.ok();
}

}  // namespace hetcomm
