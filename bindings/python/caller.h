#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <string>
#include <vector>

namespace hetcomm {

// "/home/me/train.py:31": the innermost line of this thread outside torch and hetcomm, or nothing.
// Takes some microseconds, so only operations that are late have it. With the interpreter's lock.
inline std::string python_caller() {
  namespace py = pybind11;
  try {
    std::vector<std::string> libraries{"<frozen"};
    const auto modules = py::module_::import("sys").attr("modules").cast<py::dict>();
    for (const char* name : {"hetcomm", "torch"}) {
      if (!modules.contains(name)) continue;
      const auto file = modules[name].attr("__file__").cast<std::string>();
      libraries.push_back(file.substr(0, file.rfind('/') + 1));
    }
    auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
    while (frame) {
      auto* const raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
      const auto code =
          py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(raw)));
      const auto file = code.attr("co_filename").cast<std::string>();
      const bool own = std::any_of(libraries.begin(), libraries.end(), [&](const auto& library) {
        return file.compare(0, library.size(), library) == 0;
      });
      if (!own) return file + ":" + std::to_string(PyFrame_GetLineNumber(raw));
      frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
    }
  } catch (const py::error_already_set&) {
  }
  return "";
}

}  // namespace hetcomm
