#include "exec/device_steps.h"

namespace hetcomm {

DeviceSteps::~DeviceSteps() {
  for (const Started& started : started_) device_.destroy_event(started.event);
  for (Event event : in_graph_) device_.destroy_event(event);
}

Event DeviceSteps::leave_to_graph() {
  in_graph_.push_back(started_.back().event);
  started_.pop_back();
  return in_graph_.back();
}

Status DeviceSteps::await_filled(Stream stream) {
  if (filled_ == nullptr) return Status();
  if (std::find(awaiting_.begin(), awaiting_.end(), stream) != awaiting_.end()) return Status();
  awaiting_.push_back(stream);
  return device_.wait(stream, filled_);
}

Status DeviceSteps::copy(const Step& step, const Operands& operands) {
  enqueued_ = step.target.space == Space::staging       ? streams_.to_host()
              : step.sources[0].space == Space::staging ? streams_.from_host()
                                                        : streams_.inside();
  const Status status = await_filled(enqueued_);
  const auto bytes = static_cast<size_t>(step.target.bytes());
  return status.ok() ? device_.copy(operands.target, operands.sources[0], bytes, enqueued_)
                     : status;
}

Status DeviceSteps::enter_inside() {
  enqueued_ = streams_.inside();
  return await_filled(enqueued_);
}

Status DeviceSteps::reduce(const Step& step, const Operands& operands) {
  const Status status = enter_inside();
  return status.ok() ? enqueue_reduction(*streams_.kernels(), plan_, step, operands, enqueued_)
                     : status;
}

Status DeviceSteps::encode(const Step& step, const Operands& operands) {
  const Status status = enter_inside();
  return status.ok() ? enqueue_encoding(*streams_.kernels(), step, operands, enqueued_) : status;
}

Status DeviceSteps::decode(const Step& step, const Operands& operands) {
  const Status status = enter_inside();
  return status.ok() ? enqueue_decoding(*streams_.kernels(), step, operands, enqueued_) : status;
}

Status DeviceSteps::start(int index, const Operands& operands) {
  const Step& step = plan_.steps[index];
  --left_;
  Status status = step.kind->run(*this, step, operands);
  if (!status.ok()) return status;
  status = device_.record(events_.back(), enqueued_);
  if (status.ok()) {
    started_.push_back({index, enqueued_, events_.back()});
    events_.pop_back();
  } else {
    lost_ = true;
  }
  return status;
}

Status DeviceSteps::block(Stream stream) const {
  if (plan_.steps.empty() && filled_ != nullptr) return device_.wait(stream, filled_);
  for (const Started& started : started_) {
    if (const Status status = device_.wait(stream, started.event); !status.ok()) return status;
  }
  return Status();
}

bool DeviceSteps::poll(std::vector<int>& over, Status& status) {
  const size_t before = started_.size();
  std::vector<Stream> busy;  // the events of a stream pass in order, so later events are not asked
  std::erase_if(started_, [&](const Started& started) {
    if (std::find(busy.begin(), busy.end(), started.stream) != busy.end()) return false;
    Status failure;
    const bool passed = device_.passed(started.event, failure);
    if (!passed && failure.ok()) {
      busy.push_back(started.stream);
      return false;
    }
    if (!failure.ok()) {
      lost_ = true;
      if (status.ok()) status = failure;
    } else {
      over.push_back(started.step);
    }
    device_.destroy_event(started.event);
    return true;
  });
  return started_.size() != before;
}

DeviceBlock::DeviceBlock(std::shared_ptr<Device> device, size_t bytes, bool pinned)
    : device_(std::move(device)),
      bytes_(bytes),
      data_(pinned ? device_->allocate_pinned(bytes) : device_->allocate(bytes)),
      pinned_(pinned) {}

DeviceBlock::~DeviceBlock() {
  if (data_ == nullptr) return;
  pinned_ ? device_->release_pinned(data_) : device_->release(data_);
}

DeviceBlock& DeviceBlock::operator=(DeviceBlock&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(bytes_, other.bytes_);
  std::swap(data_, other.data_);
  std::swap(pinned_, other.pinned_);
  return *this;
}

}  // namespace hetcomm
