#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "base/available_memory.h"
#include "base/config.h"
#include "base/dtype.h"
#include "base/job_key.h"
#include "base/library.h"
#include "base/settings.h"
#include "base/sha256.h"
#include "base/status.h"
#include "base/ticks.h"
#include "base/timeout.h"
#include "core/binding.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

// The Python exception of each code, derived from hetcomm.Error.
struct ExceptionRow {
  Code code;
  const char* name;
  PyObject* builtin;  // further base class
};

PyObject* base_error;  // hetcomm.Error
std::vector<std::pair<Code, PyObject*>> errors;

// Bytes of other programs may stand in a text, so it need not be UTF-8.
py::object in_words(const std::string& text) {
  PyObject* const decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(decoded);
}

py::object exception_of(const Status& status) {
  const Status::Details& details = status.details();
  py::handle type = base_error;
  for (const auto& [code, error] : errors) {
    if (code == details.code) type = error;
  }
  py::object error = type(in_words(status.text()));
  error.attr("rank") = details.rank;
  error.attr("peer") = details.peer;
  error.attr("op") = details.op;
  error.attr("step") = details.step;
  error.attr("failed_ranks") = py::tuple(py::cast(status.failed_ranks()));
  return error;
}

void bind_base(py::module_& module) {
  base_error = PyErr_NewExceptionWithDoc(
      "hetcomm.Error",
      "Base of every hetcomm error. Attributes: rank (noticed the error), peer (is the cause), "
      "op, step, failed_ranks (all that do not answer); -1 or empty if there is none.",
      PyExc_RuntimeError, nullptr);
  for (const char* name : {"rank", "peer", "step"}) py::setattr(base_error, name, py::int_(-1));
  py::setattr(base_error, "op", py::str());
  py::setattr(base_error, "failed_ranks", py::tuple());
  module.add_object("Error", py::reinterpret_borrow<py::object>(base_error));
  const ExceptionRow rows[] = {
      {Code::invalid_argument, "InvalidArgumentError", PyExc_ValueError},
      {Code::transport, "TransportError", nullptr},
      {Code::vendor, "VendorError", nullptr},
      {Code::timeout, "TimeoutError", PyExc_TimeoutError},
      {Code::aborted, "AbortedError", nullptr},
      {Code::peer_failed, "PeerFailedError", nullptr},
  };
  for (const ExceptionRow& row : rows) {
    py::tuple bases = py::make_tuple(py::handle(base_error));
    if (row.builtin) bases = py::make_tuple(py::handle(base_error), py::handle(row.builtin));
    PyObject* type =
        PyErr_NewException((std::string("hetcomm.") + row.name).c_str(), bases.ptr(), nullptr);
    if (type == nullptr) throw py::error_already_set();
    errors.push_back({row.code, type});
    module.add_object(row.name, py::reinterpret_borrow<py::object>(type));
  }
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& error) {
      const py::object raised = exception_of(error.status());
      PyErr_SetObject(py::type::of(raised).ptr(), raised.ptr());
    }
  });
  // For hetcomm._torch, which cannot throw through this module's translator.
  module.def("exception_of", [](int code, const std::string& message, int rank, int peer,
                                const std::string& op, int step, std::vector<int> failed) {
    return exception_of(Status(Status::Details{static_cast<Code>(code), message, rank, peer, op,
                                               step, std::move(failed)}));
  });

  py::enum_<Dtype> dtype(module, "Dtype");
#define X(name, ...) dtype.value(#name, Dtype::name);
  HETCOMM_DTYPES(X)
#undef X
  dtype.def_property_readonly("size", [](Dtype self) { return size_of(self); });
  dtype.def_property_readonly(
      "floating", [](Dtype self) { return class_of(self) == DtypeClass::floating; },
      "Whether cast() takes it.");
  dtype.def_property_readonly("numpy", [](Dtype self) { return row_of(self).numpy; });
  dtype.def_property_readonly("torch", [](Dtype self) { return row_of(self).torch; });
  dtype.def_property_readonly("ccl", [](Dtype self) { return row_of(self).ccl; });
  py::enum_<ReduceOp> op(module, "ReduceOp");
#define X(name) op.value(#name, ReduceOp::name);
  HETCOMM_REDUCE_OPS(X)
#undef X
  module.def("reducible", &reducible, py::arg("dtype"), py::arg("op"),
             "Whether ranks' values of this dtype can be combined by this operation.");
  module.def("ccl_reduces", &ccl_reduces, py::arg("dtype"), py::arg("op"),
             "Whether libraries with NCCL's ABI reduce it.");
  module.def(
      "settings",
      [] {
        py::list rows;
        for (const Setting& one : settings()) {
          rows.append(py::make_tuple(one.variables, one.meaning, one.otherwise));
        }
        return rows;
      },
      "Every setting: (variables, meaning, default), in Markdown.");
  module.def(
      "job_key", [] { return py::bytes(job_key()); },
      "The job key of HETCOMM_JOB_KEY_FILE or HETCOMM_JOB_KEY; empty if neither is set.");
  module.def(
      "hmac_sha256",
      [](const std::string& key, const std::string& message) {
        return py::bytes(hmac_sha256(key, message));
      },
      py::arg("key"), py::arg("message"), "The core's own HMAC, for its tests.");
  module.def(
      "sha256", [](const std::string& message) { return py::bytes(sha256(message)); },
      py::arg("message"), "The core's own SHA-256, for its tests.");
  module.def("counts_ticks_of_processor", &Ticks::of_processor,
             "Whether records take their times from the processor's counter.");
  module.def("deterministic", &deterministic, "Whether HETCOMM_DETERMINISTIC is 1.");
  module.def("parse_bytes", &parse_bytes, "\"256k\", \"16M\" or plain bytes (powers of 1024).");
  module.def("format_bytes", &format_bytes);
  module.def("available_memory", &available_memory,
             "Bytes that this process may still take: of the machine, and of its control groups.");
  module.def(
      "format_seconds", [](double seconds) { return format_seconds(Seconds(seconds)); },
      "\"12.3 us\", \"141 ms\", \"1.5 s\", \"1800 s\", \"30 min\"; never with an exponent.");
  module.def(
      "timeout",
      [](double seconds) {
        return std::chrono::duration_cast<Seconds>(given_timeout(Seconds(seconds))).count();
      },
      py::arg("seconds"),
      "Seconds that a caller gave, at most the longest wait. Raises InvalidArgumentError for "
      "negative ones and NaN.");
  set_wheel_folders(
      py::module_::import("hetcomm._wheels").attr("folders")().cast<std::vector<std::string>>());
}

const Binding base_binding(0, bind_base);

}  // namespace
}  // namespace hetcomm
