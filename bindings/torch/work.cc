#include "torch/work.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>

#include "base/timeout.h"
#include "python/caller.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

void set_outcome(c10::ivalue::Future& future, const Status& outcome,
                 const std::vector<at::Tensor>& outputs) {
  if (outcome.ok()) {
    future.markCompleted(c10::IValue(outputs));
  } else {
    future.setError(python_exception(outcome));
  }
}

}  // namespace

void throw_python(const Status& status) {
  python_error error;
  {
    py::gil_scoped_acquire gil;
    const Status::Details& details = status.details();
    const py::object value =
        py::module_::import("hetcomm._core")
            .attr("exception_of")(static_cast<int>(details.code), details.message, details.rank,
                                  details.peer, details.op, details.step, details.failed);
    PyErr_SetObject(py::type::of(value).ptr(), value.ptr());
    error.persist();
  }
  throw std::move(error);
}

std::exception_ptr python_exception(const Status& status) {
  try {
    throw_python(status);
  } catch (...) {
    return std::current_exception();
  }
}

void throw_cannot_abort() {
  throw_python(Status(Code::invalid_argument,
                      "one operation cannot be aborted alone: expected abort() of the whole group; "
                      "call torch.distributed.distributed_c10d._abort_process_group()"));
}

const Status& TorchWork::Shared::complete(const Status& status) {
  // Destroyed outside of call_once, because the destructor may need the interpreter's lock.
  std::function<void()> finished;
  std::call_once(once, [&] {
    outcome = status;
    try {
      at::AutoDispatchBelowADInplaceOrView below_autograd;  // outputs may require grad
      if (status.ok() && finish) finish();
    } catch (const std::exception& error) {
      outcome = Status(Code::invalid_argument,
                       std::string("the result cannot be written to the output: ") + error.what());
    }
    finished.swap(finish);
    if (end_of_profile) end_of_profile();
  });
  return outcome;
}

TorchWork::TorchWork(hetcomm::Work work, Call call, int rank, uint64_t sequence,
                     std::shared_ptr<GroupReference> group)
    : c10d::Work(rank, call.type, call.title(), call.profiled()),
      work_(std::move(work)),
      sequence_(sequence),
      timing_(std::move(call.timing)),
      group_(std::move(group)) {
  shared_ = std::make_shared<Shared>();
  work_.keep_alive(std::make_shared<Call::Tensors>(std::move(call.keep)));
  shared_->outputs = std::move(call.outputs);
  shared_->finish = std::move(call.finish);
  shared_->end_of_profile = std::move(recordFunctionEndCallback_);
}

// An operation that is under way keeps its tensors.
TorchWork::~TorchWork() {
  work_.when_done([shared = shared_](const Status& status) { shared->complete(status); });
}

bool TorchWork::isCompleted() {
  if (!work_.done()) return false;
  shared_->complete(work_.status());
  return true;
}

bool TorchWork::isSuccess() const { return work_.done() && shared_->complete(work_.status()).ok(); }

std::exception_ptr TorchWork::exception() const {
  if (!work_.done() || shared_->complete(work_.status()).ok()) return nullptr;
  return python_exception(shared_->outcome);
}

// Threads of Python only: other threads have no source line.
void note_caller(const hetcomm::Work& work) {
  if (Py_IsInitialized() == 0 || PyGILState_GetThisThreadState() == nullptr) return;
  const py::gil_scoped_acquire gil;
  work.note_caller(python_caller());
}

Status wait_for(const hetcomm::Work& work, std::chrono::milliseconds timeout,
                GroupReference& group) {
  const auto bound = with_python_errors(
      [&] { return timeout == kNoTimeout ? work.timeout() : torch_timeout(timeout); });
  const auto what = [&] { return work.describe(); };
  bool late = false;
  const auto within = [&](auto time) {
    const bool done = work.done_within(time);
    if (!done && !std::exchange(late, true)) note_caller(work);
    return done;
  };
  const bool done = wait_interruptibly(within, bound, group, what);
  const Status status = done ? work.status() : work.timeout_error(bound);
  if (!status.ok()) handle_signals(group, what);
  return status;
}

bool TorchWork::wait(std::chrono::milliseconds timeout) {
  const Status waited = wait_for(work_, timeout, *group_);
  const Status status = work_.done() ? shared_->complete(work_.status()) : waited;
  if (work_.done()) await_future();
  if (!status.ok()) throw_python(status);
  return true;
}

void TorchWork::abort() { throw_cannot_abort(); }

std::vector<at::Tensor> TorchWork::result() { return shared_->outputs; }

c10::intrusive_ptr<c10::ivalue::Future> TorchWork::getFuture() {
  const auto make = [] {
    return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  };
  // A child of fork() has no thread that completes futures.
  if (work_.inherited()) {
    const auto future = make();
    set_outcome(*future, shared_->complete(work_.status()), shared_->outputs);
    return future;
  }
  std::lock_guard lock(mutex_);
  if (shared_->future) return shared_->future;
  shared_->future = make();
  if (work_.done()) {
    shared_->complete(work_.status());
    shared_->complete_future();  // no callback is attached yet
    return shared_->future;
  }
  work_.when_done([shared = shared_](const Status& status) {
    shared->complete(status);
    shared->complete_future();
  });
  return shared_->future;
}

void TorchWork::Shared::complete_future() { set_outcome(*future, outcome, outputs); }

// After wait() the future is complete, too.
void TorchWork::await_future() {
  if (work_.inherited()) return;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard lock(mutex_);
    future = shared_->future;
  }
  if (future) future->wait();
}

}  // namespace hetcomm
