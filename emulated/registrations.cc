// What a program registers with a communicator: buffers, and reductions of its own.

#include <mutex>
#include <string>

#include "emulated/arithmetic.h"
#include "emulated/communicator.h"
#include "emulated/registry.h"

namespace hetcomm::emulated {

int Communicator::register_buffer(void* buffer, size_t bytes, void** registration) {
  if (buffer == nullptr || bytes == 0 || registration == nullptr) {
    throw Failure{ccl_invalid_argument, "a buffer to be registered is empty"};
  }
  std::lock_guard lock(mutex_);
  *registration = ::operator new(1);
  buffers_.emplace(*registration, buffer);
  return ccl_success;
}

int Communicator::deregister_buffer(void* registration) {
  std::lock_guard lock(mutex_);
  if (buffers_.erase(registration) == 0) {
    throw Failure{ccl_invalid_usage, "could not find the handle of a registered buffer"};
  }
  ::operator delete(registration);
  return ccl_success;
}

bool Communicator::registered(const void* memory) {
  for (const auto& communicator : registry<Communicator>().all()) {
    std::lock_guard lock(communicator->mutex_);
    for (const auto& [registration, buffer] : communicator->buffers_) {
      if (buffer == memory) return true;
    }
  }
  return false;
}

int Communicator::add_reduction(const Reduction& reduction) {
  std::lock_guard lock(mutex_);
  reductions_[next_reduction_] = reduction;
  return next_reduction_++;
}

bool Communicator::remove_reduction(int op) {
  std::lock_guard lock(mutex_);
  return reductions_.erase(op) == 1;
}

Reduction Communicator::reduction(int op, int type) {
  Reduction made;
  made.op = op;
  if (op >= op_sum && op < op_average) return made;
  if (op == op_average) {
    made.op = op_sum;
    made.scaled = floating_type(type);
    made.averaged = !made.scaled;
    if (made.scaled) made.factor = reciprocal(type, size_);
    return made;
  }
  std::lock_guard lock(mutex_);
  auto own = reductions_.find(op);
  if (own != reductions_.end()) return own->second;
  throw Failure{ccl_invalid_argument, "unknown reduction operation " + std::to_string(op)};
}

}  // namespace hetcomm::emulated
