#include "exec/device_run.h"

#include "exec/local_steps.h"

namespace hetcomm {

DeviceRun::~DeviceRun() {
  if (filled_ != nullptr) device_->destroy_event(filled_);
}

Status DeviceRun::await_stream(Stream stream, bool recorded) {
  try {
    filled_ = device_->make_event();
  } catch (const Error& error) {
    return error.status();
  }
  recorded_ = recorded;
  return device_->record(filled_, stream);
}

void DeviceRun::prepare(const Plan& plan, const DeviceKernels* kernels) {
  const auto scratch = static_cast<size_t>(plan.scratch_bytes);
  const auto staging = static_cast<size_t>(plan.staging_bytes);
  if (scratch > scratch_.bytes()) scratch_ = DeviceBlock(device_, scratch, false);
  if (staging > staging_.bytes()) staging_ = DeviceBlock(device_, staging, true);
  compile_kernels(kernels, plan);
}

bool DeviceRun::filled(Status& status) {
  if (filled_ == nullptr) return true;
  awaits_fill_ = !device_->passed(filled_, status);
  return !awaits_fill_ && status.ok();
}

void DeviceRun::release_memory() {
  scratch_ = DeviceBlock();
  staging_ = DeviceBlock();
}

void DeviceRun::abandon_memory() {
  scratch_.abandon();
  staging_.abandon();
}

Status DeviceRun::block_stream(Stream stream) {
  try {
    if (!over_) over_ = device_->make_flag();
  } catch (const Error& error) {
    return error.status();
  }
  return device_->wait(stream, over_);
}

void DeviceRun::signal() {
  if (over_) over_->set();
}

}  // namespace hetcomm
