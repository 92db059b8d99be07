#include "exec/feedback.h"

#include <sched.h>
#include <sys/mman.h>

#include <new>

#include "base/deadline.h"

namespace hetcomm {
namespace {

constexpr auto kBound = std::chrono::seconds(60);
constexpr size_t kGrain = 64;  // elements, so that vectors in device memory are aligned

Error late(const std::string& what) {
  return Error(Code::timeout, "feedback: expected " + what + " within " +
                                  std::to_string(kBound.count()) +
                                  " s; wait for the operations with this key first");
}

}  // namespace

Residual::Residual(size_t count)
    : count_(count),
      values_(mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
  if (values_ == MAP_FAILED) throw std::bad_alloc();
}

Residual::~Residual() {
  if (memory_ != nullptr) device_->release(memory_);
  munmap(values_, bytes());
}

float* Residual::on_host() {
  std::unique_lock lock(mutex_);
  bring_back(lock);
  return static_cast<float*>(values_);
}

float* Residual::on_device(const std::shared_ptr<Device>& device, size_t first, size_t end) {
  std::unique_lock lock(mutex_);
  if (!covers(device.get(), first, end)) {
    if (device_ == device) {
      first = std::min(first, first_);
      end = std::max(end, end_);
    }
    bring_back(lock);
    first_ = first / kGrain * kGrain;
    end_ = end;
    memory_ = device->allocate((end_ - first_) * sizeof(float));
    device_ = device;
    try {
      copy(memory_, static_cast<const float*>(values_) + first_);
    } catch (...) {
      device_->release(memory_);
      forget_device();
      throw;
    }
  }
  ++operations_;
  // Where element 0 would be is not in the block.
  return reinterpret_cast<float*>(reinterpret_cast<uintptr_t>(memory_) - first_ * sizeof(float));
}

void Residual::done_on_device(bool released) {
  const std::lock_guard lock(mutex_);
  if (!released) forget_device();
  if (--operations_ == 0) unused_.notify_all();
}

// Values that device memory has not had so far are in host memory.
void Residual::bring_back(std::unique_lock<std::mutex>& lock) {
  const auto is_unused = [this] { return operations_ == 0; };
  if (!unused_.wait_for(lock, kBound, is_unused)) throw late("the residual to be unused");
  if (memory_ != nullptr) {
    copy(static_cast<float*>(values_) + first_, memory_);
    device_->release(memory_);
  }
  forget_device();
}

void Residual::forget_device() {
  memory_ = nullptr;
  device_ = nullptr;
}

void Residual::copy(void* target, const void* source) {
  const Deadline deadline(kBound);
  const Stream stream = device_->make_stream();
  const Event event = device_->make_event();
  Status status = device_->copy(target, source, (end_ - first_) * sizeof(float), stream);
  if (status.ok()) status = device_->record(event, stream);
  while (status.ok() && !device_->passed(event, status) && !deadline.passed()) sched_yield();
  const bool over = !status.ok() || device_->passed(event, status);
  device_->destroy_event(event);
  device_->destroy(stream);
  check(status);
  if (!over) throw late("a copy of the residual");
}

}  // namespace hetcomm
