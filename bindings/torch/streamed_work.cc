#include "torch/streamed_work.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/log.h"
#include "torch/work.h"

namespace hetcomm {

StreamedWork::StreamedWork(hetcomm::Work work, Call call, int rank, uint64_t sequence,
                           std::shared_ptr<GroupReference> group)
    : c10d::Work(rank, call.type, call.title(), call.profiled()),
      work_(std::move(work)),
      sequence_(sequence),
      timing_(std::move(call.timing)),
      group_(std::move(group)),
      device_(std::move(call.device)),
      outputs_(std::move(call.outputs)) {
  call.keep.insert(call.keep.end(), outputs_.begin(), outputs_.end());
  work_.keep_alive(std::make_shared<Call::Tensors>(call.keep));
  // An operation recorded into a graph is over for the host, but the graph still uses its tensors.
  if (work_.done()) kept_ = call.keep;
  // A profile of the host ends once the operation is enqueued.
  if (recordFunctionEndCallback_) recordFunctionEndCallback_();
  if (!call.finish) return;
  const c10::Stream side = device_->side_stream();
  block(side);
  const c10::StreamGuard guard(side);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;  // outputs may require grad
  call.finish();
  finished_.emplace(side.device_type());
  finished_->record(side);
  // The allocator must not reuse the memory before the copies are over.
  const c10::impl::VirtualGuardImpl device(side.device_type());
  for (const at::Tensor& tensor : call.keep) {
    device.recordDataPtrOnStream(tensor.storage().data_ptr(), side);
  }
}

bool StreamedWork::isCompleted() { return work_.done() && (!finished_ || finished_->query()); }

bool StreamedWork::isSuccess() const { return work_.done() && work_.status().ok(); }

std::exception_ptr StreamedWork::exception() const {
  if (!work_.done() || work_.status().ok()) return nullptr;
  return python_exception(work_.status());
}

bool StreamedWork::wait(std::chrono::milliseconds timeout) {
  if (timeout != kNoTimeout) {
    const Status waited = wait_for(work_, timeout, *group_);
    if (!waited.ok()) throw_python(waited);
  }
  if (work_.done() && !work_.status().ok()) throw_python(work_.status());
  with_python_errors([&] { block(device_->current_stream()); });
  return true;
}

void StreamedWork::block(const c10::Stream& stream) {
  if (finished_) {
    finished_->block(stream);
    return;
  }
  const Status status = work_.block_stream(native(stream));
  if (!status.ok()) throw Error(status);
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
  if (future_) return future_;
  const c10::Device device = device_->torch_device();
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                     std::vector<c10::Device>{device});
  if (work_.done() && !work_.status().ok()) {
    future_->setError(python_exception(work_.status()));
    return future_;
  }
  // Complete for the host at once; users of the value wait in stream order. Each future has its own
  // stream, so one operation does not delay the callbacks of another.
  const c10::Stream stream =
      c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  with_python_errors([&] { block(stream); });
  const c10::StreamGuard guard(stream);
  future_->markCompleted(c10::IValue(outputs_));
  return future_;
}

}  // namespace hetcomm
