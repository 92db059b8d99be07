#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>

#include "bootstrap/device_facts.h"
#include "core/binding.h"
#include "device/vendor.h"
#include "topology/machine.h"
#include "topology/networks.h"
#include "topology/probe.h"
#include "transport/transports.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

NicChoice choose(const std::optional<Machine>& machine) {
  return choose_nics(machine ? *machine : Machine::current());
}

// The transports of a process. Without any, a communicator reports why.
std::unique_ptr<Transports> make_transports() {
  try {
    return std::make_unique<Transports>(default_transports());
  } catch (const Error& error) {
    return std::make_unique<Transports>(error.status());
  }
}

RankInfo probe_process() {
  RankInfo info = probe_rank();
  const std::vector<std::string> kinds = default_transports();
  info.rails = std::any_of(kinds.begin(), kinds.end(), [](const std::string& kind) {
    return transport_kind(kind).parts != nullptr;
  });
  return info;
}

void bind_topology_probe(py::module_& module) {
  py::class_<Machine>(module, "Machine",
                      "The sources that probing reads: those of this machine (current()) or of a "
                      "recorded one. addresses: IP by interface; requested: take exactly these.")
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

  module.def(
      "probe_nics", [](const std::optional<Machine>& machine) { return choose(machine).taken; },
      py::arg("machine") = py::none(), "The usable NICs of a machine or this one, best first.");
  module.def(
      "explain_nics",
      [](const std::optional<Machine>& machine) { return choose(machine).explanations; },
      py::arg("machine") = py::none(), "Why each interface was taken or left out.");
  module.def(
      "nic_warnings",
      [](const std::optional<Machine>& machine) { return choose(machine).warnings; },
      py::arg("machine") = py::none(),
      "The RoCE ports of a machine that only lack a setting, with the remedy.");
  module.def(
      "prefer_near",
      [](const Machine& machine, const std::string& bus, std::vector<Nic> nics) {
        prefer_near(machine, bus, nics);
        return nics;
      },
      py::arg("machine"), py::arg("bus"), py::arg("nics"),
      "The NICs in another order: the RDMA ports nearest to the device at a PCI bus id first.");
  module.def("contact_address", &contact_address, py::arg("info"),
             "The address for the small messages of set-up.");
  module.def("host_identity", &host_identity, "Identity of this memory system.");
  module.def("probe_rank", &probe_process, "The facts of this process, without libraries.");
  module.def("least_direct_bytes", &least_direct_bytes,
             "RankInfo.direct_bytes of a rank on a device: HETCOMM_DIRECT_BYTES.");
  module.def(
      "probe_device",
      [](RankInfo info) {
        try {
          std::unique_ptr<Transports> transports;
          if (find_vendor(info.vendor) != nullptr) transports = make_transports();
          open_device(info, transports ? transports->main() : nullptr);
        } catch (const Error& error) {
          info.libraries["runtime"] = error.status().text();
        }
        return info;
      },
      py::arg("info"),
      "Facts of a rank, completed by its device, or by the reason why the device cannot be used.");
}

const Binding topology_probe_binding(12, bind_topology_probe);

}  // namespace
}  // namespace hetcomm
