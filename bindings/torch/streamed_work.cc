#include "torch/streamed_work.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/log.h"
#include "torch/work.h"

namespace hetcomm {

const Status& StreamedWork::Shared::complete(const Status& status) {
  std::function<void()> done;  // destroyed outside of call_once, because tensors may go with it
  std::call_once(once, [&] {
    outcome = status;
    if (!status.ok() || !finish) return;
    try {
      const c10::Stream side = device->side_stream();
      const c10::StreamGuard guard(side);
      const at::AutoDispatchBelowADInplaceOrView below_autograd;  // outputs may require grad
      finish();
      finished.emplace(side.device_type());
      finished->record(side);
    } catch (const std::exception& error) {
      outcome = Status(Code::invalid_argument,
                       std::string("the result cannot be written to the output: ") + error.what());
    }
    done.swap(finish);
  });
  return outcome;
}

void StreamedWork::Shared::complete_future() {
  if (!outcome.ok()) return future->setError(python_exception(outcome));
  try {
    // Complete for the host at once; users of the value wait in stream order. Each future has its
    // own stream, so one operation does not delay the callbacks of another.
    const c10::Device on = device->torch_device();
    const c10::Stream stream = c10::impl::VirtualGuardImpl(on.type()).getStreamFromGlobalPool(on);
    if (finished) finished->block(stream);
    const c10::StreamGuard guard(stream);
    future->markCompleted(c10::IValue(outputs));
  } catch (...) {
    future->setErrorIfNeeded(std::current_exception());
  }
}

StreamedWork::StreamedWork(hetcomm::Work work, Call call, int rank, uint64_t sequence,
                           std::shared_ptr<GroupReference> group)
    : c10d::Work(rank, call.type, call.title(), call.profiled()),
      work_(std::move(work)),
      sequence_(sequence),
      timing_(std::move(call.timing)),
      group_(std::move(group)),
      shared_(std::make_shared<Shared>()) {
  shared_->device = std::move(call.device);
  shared_->outputs = std::move(call.outputs);
  call.keep.insert(call.keep.end(), shared_->outputs.begin(), shared_->outputs.end());
  work_.keep_alive(std::make_shared<Call::Tensors>(call.keep));
  // An operation captured into a graph is over for the host, but the graph still uses its tensors.
  if (work_.done()) shared_->kept = call.keep;
  // A profile of the host ends once the operation is enqueued.
  if (recordFunctionEndCallback_) recordFunctionEndCallback_();
  if (!call.finish) return;
  const c10::Stream side = shared_->device->side_stream();
  // The allocator must not reuse the memory before the copies are over.
  const c10::impl::VirtualGuardImpl device(side.device_type());
  for (const at::Tensor& tensor : call.keep) {
    device.recordDataPtrOnStream(tensor.storage().data_ptr(), side);
  }
  finishes_later_ = !work_.in_streams();
  if (finishes_later_) {
    shared_->finish = [finish = std::move(call.finish), keep = std::move(call.keep)] { finish(); };
    work_.when_done([shared = shared_](const Status& status) { shared->complete(status); });
  } else {
    block(side);
    shared_->finish = std::move(call.finish);
    with_python_errors([&] { check(shared_->complete({})); });
  }
}

bool StreamedWork::isCompleted() {
  if (!work_.done()) return false;
  if (finishes_later_) shared_->complete(work_.status());
  return !shared_->finished || shared_->finished->query();
}

bool StreamedWork::isSuccess() const { return work_.done() && work_.status().ok(); }

std::exception_ptr StreamedWork::exception() const {
  if (!work_.done() || work_.status().ok()) return nullptr;
  return python_exception(work_.status());
}

bool StreamedWork::wait(std::chrono::milliseconds timeout) {
  if (timeout != kNoTimeout || finishes_later_) {
    const Status waited = wait_for(work_, timeout, *group_);
    if (!waited.ok()) throw_python(waited);
  }
  if (work_.done() && !work_.status().ok()) throw_python(work_.status());
  if (finishes_later_) {
    if (const Status& status = shared_->complete(work_.status()); !status.ok()) {
      throw_python(status);
    }
  } else {
    wait_in_streams();
  }
  with_python_errors([&] { block(shared_->device->current_stream()); });
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard lock(mutex_);
    if (future_later_) future = shared_->future;
  }
  if (future) future->wait();  // after wait() the future is complete, too
  return true;
}

void StreamedWork::wait_in_streams() {
  const Status captured = work_.check_not_captured(native(shared_->device->current_stream()));
  if (!captured.ok()) throw_python(captured);
  if (work_.in_streams()) return;
  const auto what = [&] { return work_.describe(); };
  const auto within = [&](auto time) { return work_.in_streams_within(time); };
  if (!wait_interruptibly(within, work_.timeout(), *group_, what)) {
    throw_python(work_.timeout_error(work_.timeout()));
  }
}

void StreamedWork::block(const c10::Stream& stream) {
  if (shared_->finished) {
    shared_->finished->block(stream);
    return;
  }
  const Status status = work_.block_stream(native(stream));
  if (!status.ok()) {
    handle_signals(*group_, [&] { return work_.describe(); });
    throw Error(status);
  }
  if (work_.done()) return;
  std::call_once(logs_failure_, [&] {
    work_.when_done([what = work_.describe(), rank = rank_](const Status& outcome) {
      if (outcome.ok()) return;
      log(LogLevel::error,
          what +
              " failed after a stream was told to wait for it, so what the stream computed from "
              "its result is invalid: " +
              outcome.text(),
          rank);
    });
  });
}

void StreamedWork::abort() { throw_cannot_abort(); }

c10::intrusive_ptr<c10::ivalue::Future> StreamedWork::getFuture() {
  std::lock_guard lock(mutex_);
  if (shared_->future) return shared_->future;
  const c10::Device device = shared_->device->torch_device();
  const auto future = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{device});
  shared_->future = future;
  if (work_.done() && !work_.status().ok()) {
    future->setError(python_exception(work_.status()));
    return future;
  }
  future_later_ = finishes_later_ || !work_.in_streams();
  if (future_later_) {
    work_.when_done([shared = shared_](const Status& status) {
      shared->complete(status);
      shared->complete_future();
    });
    return future;
  }
  const c10::Stream stream =
      c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  with_python_errors([&] { block(stream); });
  const c10::StreamGuard guard(stream);
  future->markCompleted(c10::IValue(shared_->outputs));
  return future;
}

}  // namespace hetcomm
