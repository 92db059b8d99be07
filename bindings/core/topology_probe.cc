#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/binding.h"
#include "topology/machine.h"
#include "topology/probe.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

void bind(py::module_& module) {
  py::class_<Machine>(module, "Machine",
                      "The sources that probing reads: this machine's (current()) or a recorded "
                      "one's. addresses: IP by interface; requested: take exactly these.")
      .def(py::init([](std::string sysfs, std::map<std::string, std::string> addresses,
                       std::set<std::string> default_routes, std::vector<std::string> requested,
                       std::string verbs) {
             return Machine{sysfs, verbs, addresses, default_routes, requested};
           }),
           py::arg("sysfs"), py::arg("addresses") = std::map<std::string, std::string>(),
           py::arg("default_routes") = std::set<std::string>(),
           py::arg("requested") = std::vector<std::string>(), py::arg("verbs") = "")
      .def_static("current", &Machine::current)
      .def_readonly("sysfs", &Machine::sysfs)
      .def_readonly("verbs", &Machine::verbs)
      .def_readonly("addresses", &Machine::addresses)
      .def_readonly("default_routes", &Machine::default_routes)
      .def_readonly("requested", &Machine::requested);

  module.def("probe_nics", &probe_nics, "The usable NICs of this machine, best first.");
  module.def(
      "probe_nics", [](const Machine& machine) { return choose_nics(machine).taken; },
      py::arg("machine"));
  module.def("explain_nics", &explain_nics, "Why each interface was taken or left out.");
  module.def(
      "explain_nics", [](const Machine& machine) { return choose_nics(machine).explanations; },
      py::arg("machine"));
  module.def("host_identity", &host_identity, "Identity of this memory system.");
  module.def("probe_rank", &probe_rank, "The facts of this process, without libraries.");
}

const Binding binding(12, bind);

}  // namespace
}  // namespace hetcomm
