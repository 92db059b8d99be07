#include "health/dump.h"

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/binding.h"
#include "exec/warning.h"
#include "health/metrics.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

// Longer than any group awaits answers.
constexpr std::chrono::seconds kBound(5);

void bind_dump(py::module_& module) {
  module.def(
      "dump",
      [](const std::string& why, bool trace) {
        const py::gil_scoped_release release;
        const auto dump = Dump::begin(why, trace);
        dump->wait(kBound);
        return std::make_pair(dump->text(), trace ? dump->trace() : "");
      },
      py::arg("why"), py::arg("trace") = false,
      "Asks all ranks of all groups of this process for their state. Returns the diagnosis, and "
      "with `trace` the last steps as JSON of Chrome's trace viewer.");
  module.def("metrics", &metrics, py::call_guard<py::gil_scoped_release>(),
             "The counters of all groups of this process, as Prometheus text.");
  module.def(
      "set_warning_sink", &set_warning_sink, py::arg("sink"),
      "`sink` gets each warning about what makes a job slow, on a thread of hetcomm's. None: "
      "the log gets them.");
}

const Binding dump_binding(41, bind_dump);

}  // namespace
}  // namespace hetcomm
