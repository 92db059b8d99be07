#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

namespace hetcomm {

// A text of Python. Characters that UTF-8 lacks, as in names of files in other encodings, are
// escaped.
inline std::string escaped_text(const pybind11::object& text) {
  return text.attr("encode")("utf-8", "backslashreplace").cast<std::string>();
}

// "/home/me/train.py:31": the innermost line of this thread outside torch and hetcomm, or nothing.
// Takes some microseconds, so only operations that are late have it. With the interpreter's lock.
inline std::string python_caller() {
  namespace py = pybind11;
  try {
    std::vector<std::string> libraries{"<frozen"};
    const auto modules = py::module_::import("sys").attr("modules").cast<py::dict>();
    for (const char* name : {"hetcomm", "torch"}) {
      if (!modules.contains(name)) continue;
      const auto file = escaped_text(modules[name].attr("__file__"));
      libraries.push_back(file.substr(0, file.rfind('/') + 1));
    }
    auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
    while (frame) {
      auto* const raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
      const auto code =
          py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(raw)));
      const auto file = escaped_text(code.attr("co_filename"));
      const bool own = std::any_of(libraries.begin(), libraries.end(), [&](const auto& library) {
        return file.compare(0, library.size(), library) == 0;
      });
      if (!own) return file + ":" + std::to_string(PyFrame_GetLineNumber(raw));
      frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
    }
  } catch (const std::exception&) {  // the operation matters more than its caller
  }
  return "";
}

}  // namespace hetcomm
