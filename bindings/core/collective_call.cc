// Synchronous collectives of arrays in host memory: the most frequent and fastest calls. A plain
// function of CPython, because pybind11's conversion of arguments takes longer than a small call.

#include <algorithm>
#include <array>
#include <climits>
#include <exception>
#include <optional>

#include "base/timeout.h"
#include "core/array_spec.h"
#include "core/binding.h"
#include "core/waiting.h"
#include "python/caller.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

// The communicator of a function.
struct Target {
  py::object owner;
  Communicator& communicator;
};

enum Argument {
  self,
  collective,
  input,
  output,
  op,
  factor,
  root,
  stream,
  async_op,
  timeout,
  codec,
  all
};

std::optional<ReduceOp> op_of(PyObject* given) {
  static const auto names = [] {
    std::array<PyObject*, kReduceOps> made{};
    for (size_t i = 0; i < made.size(); ++i) {
      const auto one = static_cast<ReduceOp>(i);
      made[i] = PyUnicode_InternFromString(one == ReduceOp::average ? "avg" : name(one));
    }
    return made;
  }();
  for (size_t i = 0; i < names.size(); ++i) {
    if (given == names[i]) return static_cast<ReduceOp>(i);  // literals are interned
  }
  if (!PyUnicode_Check(given)) return std::nullopt;
  for (size_t i = 0; i < names.size(); ++i) {
    if (PyUnicode_Compare(given, names[i]) == 0) return static_cast<ReduceOp>(i);
  }
  return std::nullopt;
}

// So many bytes take about a microsecond. Releasing and retaking Python's lock takes 50 ns.
constexpr int64_t kAtOnce = 4096;

void run(Communicator& communicator, const ArrayCollective& call,
         const Communicator::CallOptions& options) {
  std::optional<Work> work;
  if (largest_buffer(call.spec, communicator.size()) <= kAtOnce) {
    work = call.try_submit(communicator, options);
    if (work && work->done() && work->status().ok()) return;
  }
  {
    const py::gil_scoped_release release;
    if (!work) work = call.submit(communicator, options);
    if (!work->done_within(kSignalInterval) || !work->status().ok()) {
      keeping(*work, call.input, call.output);  // the operation may outlast this call
    }
  }
  if (!work->done()) work->note_caller(python_caller());
  wait_released(*work, std::nullopt);
}

// Raises the current exception in Python, as pybind11's functions do.
PyObject* raise_current() {
  try {
    py::cpp_function([error = std::current_exception()] { std::rethrow_exception(error); })();
  } catch (py::error_already_set& error) {
    error.restore();
  }
  return nullptr;
}

PyObject* call(PyObject* capsule, PyObject* const* given, Py_ssize_t count) {
  if (count != all) {
    PyErr_Format(PyExc_TypeError, "expected %d arguments, got %zd", int{all}, count);
    return nullptr;
  }
  auto& target = *static_cast<Target*>(PyCapsule_GetPointer(capsule, nullptr));
  Communicator& communicator = target.communicator;
  const std::optional<ReduceOp> chosen = op_of(given[op]);
  const auto leave_to_python = [&] {
    static PyObject* const start = PyUnicode_InternFromString("_start");
    return PyObject_VectorcallMethod(start, given, all, nullptr);
  };
  if (given[async_op] != Py_False || given[codec] != Py_None || communicator.device() || !chosen) {
    return leave_to_python();
  }
  const double scale = PyFloat_AsDouble(given[factor]);
  const long which = PyLong_AsLong(given[collective]);
  const long at = std::clamp<long>(PyLong_AsLong(given[root]), -1, INT_MAX);  // no rank beyond
  const bool timed = given[timeout] != Py_None;
  const Seconds bound(timed ? PyFloat_AsDouble(given[timeout]) : 0);
  if (PyErr_Occurred() != nullptr) {  // refused there, with a text and for all ranks
    PyErr_Clear();
    return leave_to_python();
  }
  try {
    Communicator::CallOptions options{.will_wait = true};
    reporting_refusal(communicator, [&] {
      if (timed) options.timeout = given_timeout(bound);
    });
    const ArrayCollective made(communicator, static_cast<Collective>(which), given[input],
                               given[output], *chosen, scale, static_cast<int>(at), py::none());
    run(communicator, made, options);
  } catch (const NotPacked&) {
    return leave_to_python();
  } catch (...) {
    return raise_current();
  }
  return Py_NewRef(given[output]);
}

PyMethodDef method = {"collective", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&call)),
                      METH_FASTCALL, nullptr};

py::object collective_call(const py::object& communicator) {
  auto* target = new Target{communicator, communicator.cast<Communicator&>()};
  const py::capsule capsule(target, [](void* made) { delete static_cast<Target*>(made); });
  return py::reinterpret_steal<py::object>(PyCFunction_New(&method, capsule.ptr()));
}

void bind_collective_call(py::module_& module) {
  module.def(
      "collective_call", &collective_call, py::arg("communicator"),
      "A function (self, collective: int, input, output, op: str, factor, root, stream, "
      "async_op, timeout, codec) that returns `output` when the collective is over. Calls "
      "self._start() with the other arguments for asynchronous collectives, for those with a "
      "codec of their own, for devices and for arrays that need a copy.");
}

const Binding collective_call_binding(50, bind_collective_call);

}  // namespace
}  // namespace hetcomm
