#include "exec/device_steps.h"

#include <algorithm>

namespace hetcomm {

DeviceSteps::~DeviceSteps() {
  for (const Started& started : started_) device().destroy_event(started.event);
  for (Event event : in_graph_) device().destroy_event(event);
}

Event DeviceSteps::leave_to_graph() {
  in_graph_.push_back(started_.back().event);
  started_.pop_back();
  return in_graph_.back();
}

Status DeviceSteps::follow(Stream stream) {
  if (filled_ == nullptr) return Status();
  if (std::find(following_.begin(), following_.end(), stream) != following_.end()) return Status();
  following_.push_back(stream);
  return device().wait(stream, filled_);
}

Status DeviceSteps::copy(int step, void* target, const void* source, size_t bytes, Way way) {
  const Stream stream = way == Way::outward  ? streams_.outward()
                        : way == Way::inward ? streams_.inward()
                                             : streams_.inner();
  Status status = follow(stream);
  if (status.ok()) status = device().copy(target, source, bytes, stream);
  return status.ok() ? started(step, stream) : status;
}

Status DeviceSteps::reduce(int step, Dtype dtype, ReduceOp op, void* target,
                           const std::vector<const void*>& sources, size_t count) {
  Status status = follow(streams_.inner());
  if (status.ok()) {
    status = streams_.kernels()->reduce(dtype, op, target, sources.data(),
                                        static_cast<int>(sources.size()), count, streams_.inner());
  }
  return status.ok() ? started(step, streams_.inner()) : status;
}

Status DeviceSteps::scale(int step, Dtype dtype, Scale by, void* target, const void* source,
                          size_t count) {
  Status status = follow(streams_.inner());
  if (status.ok()) {
    status = streams_.kernels()->scale(dtype, by, target, source, count, streams_.inner());
  }
  return status.ok() ? started(step, streams_.inner()) : status;
}

// Remembers the step that was just put into the stream.
Status DeviceSteps::started(int step, Stream stream) {
  Status status;
  Event event = nullptr;
  try {
    event = device().make_event();
    status = device().record(event, stream);
  } catch (const Error& error) {
    status = error.status();
  }
  if (status.ok()) {
    started_.push_back({step, event});
  } else {
    lost_ = true;
    if (event != nullptr) device().destroy_event(event);
  }
  return status;
}

bool DeviceSteps::poll(std::vector<int>& over, Status& status) {
  const size_t before = started_.size();
  std::erase_if(started_, [&](const Started& started) {
    Status failure;
    const bool passed = device().passed(started.event, failure);
    if (!passed && failure.ok()) return false;
    if (!failure.ok()) {
      lost_ = true;
      if (status.ok()) status = failure;
    } else {
      over.push_back(started.step);
    }
    device().destroy_event(started.event);
    return true;
  });
  return started_.size() != before;
}

DeviceBlock::DeviceBlock(std::shared_ptr<Device> device, size_t bytes, bool pinned)
    : device_(std::move(device)),
      data_(pinned ? device_->allocate_pinned(bytes) : device_->allocate(bytes)),
      pinned_(pinned) {}

DeviceBlock::~DeviceBlock() {
  if (data_ == nullptr) return;
  pinned_ ? device_->release_pinned(data_) : device_->release(data_);
}

DeviceBlock& DeviceBlock::operator=(DeviceBlock&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(pinned_, other.pinned_);
  return *this;
}

}  // namespace hetcomm
