#include "exec/device_run.h"

#include <algorithm>
#include <atomic>

#include "exec/local_steps.h"

namespace hetcomm {
namespace {

// The bytes of the residual from the first to the last that the device updates.
std::pair<int64_t, int64_t> updated_on_device(const Plan& plan) {
  int64_t first = 0, end = 0;
  for (const Step& step : plan.steps) {
    if (!step.kind->encodes || step.sources.size() < 2 || step.in_staging()) continue;
    const Range& residual = step.sources[1];
    first = end == 0 ? residual.offset : std::min(first, residual.offset);
    end = std::max(end, residual.end());
  }
  return {first, end};
}

uint32_t number_of_this_thread() {
  static std::atomic<uint32_t> threads{0};
  static thread_local const uint32_t number = threads++;
  return number;
}

}  // namespace

DeviceRun::DeviceRun(std::shared_ptr<Device> device)
    : device_(std::move(device)), thread_(number_of_this_thread()) {}

DeviceRun::~DeviceRun() {
  release_memory();
  if (filled_ != nullptr) device_->destroy_event(filled_);
  for (Event event : events_) device_->destroy_event(event);
}

Status DeviceRun::await_stream(Stream stream, bool captured) {
  try {
    filled_ = device_->make_event();
  } catch (const Error& error) {
    return error.status();
  }
  captured_ = captured;
  return device_->record(filled_, stream);
}

void DeviceRun::prepare(const Plan& plan, const DeviceKernels* kernels,
                        std::shared_ptr<Residual> residual) {
  const auto scratch = static_cast<size_t>(plan.scratch_bytes);
  const auto staging = static_cast<size_t>(plan.staging_bytes);
  if (scratch > scratch_.bytes()) scratch_ = DeviceBlock(device_, scratch, false);
  if (staging > staging_.bytes()) staging_ = DeviceBlock(device_, staging, true);
  compile_kernels(kernels, plan);
  const auto steps = std::count_if(plan.steps.begin(), plan.steps.end(), needs_device);
  while (events_.size() < static_cast<size_t>(steps)) events_.push_back(device_->make_event());
  if (!residual) return;
  const auto [first, end] = updated_on_device(plan);
  if (end == 0) {
    values_ = residual->on_host();
  } else {
    values_ = residual->on_device(device_, first / kResidualBytes, end / kResidualBytes);
    residual_ = std::move(residual);
  }
}

bool DeviceRun::filled(Status& status) {
  if (filled_ == nullptr) return true;
  awaits_fill_ = !device_->passed(filled_, status);
  return !awaits_fill_ && status.ok();
}

bool DeviceRun::behind_stream() const {
  Status status;
  return filled_ != nullptr && !captured_ && !device_->passed(filled_, status) && status.ok();
}

void DeviceRun::release_memory() {
  scratch_ = DeviceBlock();
  staging_ = DeviceBlock();
  if (residual_) residual_->done_on_device(true);
  residual_ = nullptr;
}

void DeviceRun::abandon_memory() {
  scratch_.abandon();
  staging_.abandon();
  if (residual_) residual_->done_on_device(false);
  residual_ = nullptr;
}

}  // namespace hetcomm
