#include "torch/interrupt.h"

#include <pybind11/pybind11.h>
#include <sys/syscall.h>
#include <torch/csrc/Exceptions.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "base/deadline.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

// Between two calls of Python's signal handlers.
constexpr std::chrono::nanoseconds kSignalInterval = std::chrono::milliseconds(100);

// The process's first thread. A program may embed Python in another thread; Python then ignores
// PyErr_CheckSignals().
bool on_main_thread() { return syscall(SYS_gettid) == getpid(); }

}  // namespace

void GroupReference::abort(const std::string& reason) {
  if (mark_.inherited()) return;
  std::lock_guard lock(mutex_);
  if (communicator_ != nullptr) communicator_->abort(reason);
}

void GroupReference::detach() {
  if (mark_.inherited()) return;
  std::lock_guard lock(mutex_);
  communicator_ = nullptr;
}

void handle_signals(GroupReference& group, const std::function<std::string()>& what) {
  if (!on_main_thread() || Py_IsInitialized() == 0) return;
  std::optional<python_error> raised;
  std::string name;
  {
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() == 0) return;
    // An ordinary exception, of a handler of SIGALRM for instance, ends this wait alone.
    if (PyErr_ExceptionMatches(PyExc_Exception) == 0) {
      name = reinterpret_cast<PyTypeObject*>(PyErr_Occurred())->tp_name;
    }
    raised.emplace().persist();
  }
  if (!name.empty()) {
    // A thread with one of the group's locks may wait for the interpreter's lock.
    std::optional<py::gil_scoped_release> release;
    if (PyGILState_Check() != 0) release.emplace();
    group.abort(name + " during " + what());
  }
  throw std::move(*raised);
}

bool wait_interruptibly(const std::function<bool(std::chrono::nanoseconds)>& done_within,
                        std::chrono::nanoseconds timeout, GroupReference& group,
                        const std::function<std::string()>& what) {
  const Deadline deadline(timeout);
  while (!done_within(std::min(deadline.left(), kSignalInterval))) {
    if (!on_main_thread()) return done_within(deadline.left());
    handle_signals(group, what);
    if (deadline.passed()) return false;
  }
  return true;
}

}  // namespace hetcomm
