#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <tuple>

#include "core/binding.h"
#include "plan/profile.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

using Points = std::vector<std::pair<int64_t, int64_t>>;
using Curves = std::map<std::string, Points>;

// (members, ranks, cores, collective -> points) of each.
std::vector<std::tuple<int64_t, int64_t, int64_t, Curves>> islands_of(const Profile& profile) {
  std::vector<std::tuple<int64_t, int64_t, int64_t, Curves>> islands;
  for (const Profile::Island& island : profile.islands) {
    Curves curves;
    for (const auto& [collective, curve] : island.curves) {
      curves[name(collective)] = curve.points();
    }
    islands.emplace_back(island.size.members, island.size.ranks, island.size.cores,
                         std::move(curves));
  }
  return islands;
}

void bind_plan_profile(py::module_& module) {
  py::class_<Profile, std::shared_ptr<Profile>> profile(
      module, "Profile",
      "The results of hetcomm tune, from their text; `source` is for messages. Raises "
      "InvalidArgumentError that names the line. Immutable.");
  py::class_<Profile::Host>(profile, "Host")
      .def_readonly("name", &Profile::Host::name)
      .def_readonly("ranks", &Profile::Host::ranks)
      .def_readonly("cores", &Profile::Host::cores)
      .def_readonly("nics", &Profile::Host::nics)
      .def_readonly("bandwidth", &Profile::Host::bandwidth);
  profile.def(py::init(&parse_profile), py::arg("text"), py::arg("source") = "given")
      .def_static(
          "setting", [] { return std::const_pointer_cast<Profile>(profile_setting()); },
          "The file that HETCOMM_PROFILE names; None if it is not set.")
      .def_readonly("hosts", &Profile::hosts)
      .def_property_readonly("islands", &islands_of)
      .def_property_readonly("messages",
                             [](const Profile& self) {
                               Curves messages;
                               for (const auto& [fabric, curve] : self.messages) {
                                 messages[name(fabric)] = curve.points();
                               }
                               return messages;
                             })
      .def_readonly("memory_bandwidth", &Profile::memory_bandwidth)
      .def("match_hosts", &Profile::match_hosts, py::arg("topology"),
           "For each host of the topology a measured host like it, by index. Raises "
           "InvalidArgumentError if some host finds none.")
      .def("digest", &Profile::digest)
      .def("__str__", &Profile::text);
  module.def("profile_host", &profile_host, py::arg("topology"), py::arg("host"));
  module.def("profiled_collectives", &profiled_collectives);
}

// Before the cost model, whose parameters have one.
const Binding plan_profile_binding(19, bind_plan_profile);

}  // namespace
}  // namespace hetcomm
