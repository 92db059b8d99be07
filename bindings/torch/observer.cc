#include "torch/observer.h"

#include "base/config.h"
#include "base/log.h"
#include "torch/backend.h"

namespace hetcomm {
namespace {

// Between the end of an operation and the calls of its listeners.
constexpr std::chrono::seconds kListenerBound{5};

}  // namespace

float duration(const Work& work, const std::shared_ptr<const Timing>& timing) {
  return with_python_errors([&] {
    if (!timing) {
      throw Error(Code::invalid_argument,
                  "duration: expected a group that times its operations; call its "
                  "_enable_collectives_timing() before the operation");
    }
    if (!work.done() || timing->took.wait_for(kListenerBound) != std::future_status::ready) {
      throw Error(Code::invalid_argument,
                  "duration: expected an operation that is over, got one under way; wait for it "
                  "first");
    }
    return std::chrono::duration<float, std::milli>(timing->took.get()).count();
  });
}

void Observer::set_hook(Hook hook) {
  std::lock_guard lock(mutex_);
  if (hook_) {
    throw Error(Code::invalid_argument,
                "on completion hook: expected one for each group, got a second one; call both "
                "from the first");
  }
  hook_ = std::move(hook);
  has_hook_ = true;
}

void Observer::watch(const Work& work, std::shared_ptr<Timing> timing, c10d::OpType type,
                     uint64_t sequence) {
  const bool hooked = has_hook_;
  if (hooked) {
    std::lock_guard lock(mutex_);
    ++unreported_;
  }
  work.when_done([self = shared_from_this(), timing, type, sequence, hooked](const Status& status) {
    const Timing::Moment now = Timing::Moment::clock::now();
    timing->end.set_value(now - timing->started);
    if (!hooked) return;
    if (status.ok()) {
      self->call_hook(c10d::WorkInfo(type, sequence, timing->started, now, now - timing->started));
    }
    std::lock_guard lock(self->mutex_);
    --self->unreported_;
    self->reported_.notify_all();
  });
}

// Nothing catches exceptions on a thread of callbacks.
void Observer::call_hook(const c10d::WorkInfo& info) const {
  try {
    hook_(std::make_shared<c10d::WorkInfo>(info));
  } catch (const std::exception& error) {
    log(LogLevel::error, std::string("the group's completion hook raised: ") + error.what());
  }
}

bool Observer::wait(const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  return reported_.wait_for(lock, deadline.left_ms(), [&] { return unreported_ == 0; });
}

void TorchBackend::registerOnCompletionHook(
    std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  with_python_errors([&] { observer_->set_hook(hook); });
  onCompletionHook_ = std::move(hook);  // torch's hasHooks() reads it
}

void TorchBackend::waitForPendingWorks() {
  with_python_errors([&] {
    const auto bound = communicator_->timeout() + std::chrono::seconds(5);
    const Deadline deadline(bound);
    const bool idle = wait_interruptibly(
        [&](auto time) { return communicator_->wait_until_idle(Deadline(time)); }, bound,
        *reference_, [] { return std::string("the group's pending operations"); });
    if (idle && observer_->wait(deadline)) return;
    throw Error(Code::timeout, "operations of the group are still under way after " +
                                   format_seconds(bound) +
                                   "; see that all ranks make the same calls");
  });
}

}  // namespace hetcomm
