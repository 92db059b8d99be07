#include "topology/topology.h"

#include <pybind11/operators.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <tuple>

#include "base/status.h"
#include "core/binding.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

using UnreachableTuple = std::tuple<std::string, std::string, std::string>;

// Makes an object from keyword arguments that are its attributes' names.
template <typename Value>
void construct_from_keywords(py::class_<Value>& type) {
  type.def(py::init([](const py::kwargs& fields) {
    py::object self = py::cast(Value());
    for (auto [field, value] : fields) {
      if (!py::hasattr(self, field)) {
        throw py::type_error(py::cast<std::string>(py::str(py::type::of<Value>())) +
                             " has no field " + py::cast<std::string>(py::repr(field)));
      }
      py::setattr(self, field, value);
    }
    return py::cast<Value>(self);
  }));
}

// Python may pass any number. The core checks none.
int checked(int number, size_t count, const char* what) {
  if (number >= 0 && number < static_cast<int>(count)) return number;
  throw Error(Code::invalid_argument, std::string("expected ") + what + " from 0 to " +
                                          std::to_string(count - 1) + ", got " +
                                          std::to_string(number));
}

int checked_rank(const Topology& self, int rank) { return checked(rank, self.size(), "a rank"); }

// Methods of Topology for any rank, pair of ranks or host.
template <auto method>
auto of_rank(const Topology& self, int rank) {
  return (self.*method)(checked_rank(self, rank));
}
template <auto method>
auto of_pair(const Topology& self, int a, int b) {
  return (self.*method)(checked_rank(self, a), checked_rank(self, b));
}
template <auto method>
auto of_host(const Topology& self, int host) {
  return (self.*method)(checked(host, self.hosts().size(), "a host"));
}

void bind_facts(py::module_& module) {
  enumerate(module, "Fabric", "A kind of connection.", Fabric::ethernet);
  module.def("fabric_from_name", &fabric_from_name, py::arg("name"));

  enumerate(module, "Memory", "The memory of a rank's buffers.", Memory::device);

  py::class_<Nic> nic(module, "Nic",
                      "One network interface or RDMA port. bandwidth: bytes per second and "
                      "direction, assumed unless bandwidth_known; numa and gid: -1 if unknown.");
  nic.def_readwrite("name", &Nic::name)
      .def_readwrite("interface", &Nic::interface)
      .def_readwrite("fabric", &Nic::fabric)
      .def_readwrite("bandwidth", &Nic::bandwidth)
      .def_readwrite("bandwidth_known", &Nic::bandwidth_known)
      .def_readwrite("numa", &Nic::numa)
      .def_readwrite("address", &Nic::address)
      .def_readwrite("subnet", &Nic::subnet)
      .def_readwrite("gid", &Nic::gid)
      .def(py::self == py::self)
      .def("__repr__", [](const Nic& self) {
        return "<Nic " + self.name + " " + name(self.fabric) + " " + self.address + ">";
      });
  construct_from_keywords(nic);

  py::class_<RankInfo> info(module, "RankInfo",
                            "The facts of one rank. Lists and dictionaries are copies: assign the "
                            "whole field to change it.");
  info.def_readwrite("host", &RankInfo::host)
      .def_readwrite("host_name", &RankInfo::host_name)
      .def_readwrite("machine", &RankInfo::machine)
      .def_readwrite("vendor", &RankInfo::vendor)
      .def_readwrite("cores", &RankInfo::cores)
      .def_readwrite("processors", &RankInfo::processors)
      .def_readwrite("memory", &RankInfo::memory)
      .def_readwrite("direct", &RankInfo::direct)
      .def_readwrite("direct_bytes", &RankInfo::direct_bytes)
      .def_readwrite("kernels", &RankInfo::kernels)
      .def_readwrite("device", &RankInfo::device)
      .def_readwrite("ccl", &RankInfo::ccl)
      .def_readwrite("float8", &RankInfo::float8)
      .def_readwrite("rails", &RankInfo::rails)
      .def_readwrite("island", &RankInfo::island)
      .def_readwrite("zone", &RankInfo::zone)
      .def_readwrite("nics", &RankInfo::nics)
      .def_readwrite("warnings", &RankInfo::warnings)
      .def_readwrite("libraries", &RankInfo::libraries)
      .def(py::self == py::self)
      .def("__repr__", [](const RankInfo& self) {
        return "<RankInfo " + self.vendor + " on " + self.host_name + " (" + self.host + ")>";
      });
  construct_from_keywords(info);
  module.def("serialize", &serialize, py::arg("info"));
  module.def("parse_rank_info", &parse_rank_info, py::arg("text"),
             "The RankInfo that serialize() wrote; InvalidArgumentError names the line.");
}

void bind_topology(py::module_& module) {
  py::class_<IslandNetwork> network(module, "IslandNetwork",
                                    "The network of an island between hosts. members: by index in "
                                    "the island.");
  network.def_readonly("fabric", &IslandNetwork::fabric)
      .def_readonly("members", &IslandNetwork::members)
      .def_readonly("why", &IslandNetwork::why)
      .def_readonly("passed_over", &IslandNetwork::passed_over);
  py::class_<IslandNetwork::Member>(network, "Member")
      .def_readonly("devices", &IslandNetwork::Member::devices)
      .def_readonly("gid", &IslandNetwork::Member::gid)
      .def_readonly("interface", &IslandNetwork::Member::interface);

  py::class_<Rail>(module, "Rail", "One of several NICs that carry a message together.")
      .def_readonly("own", &Rail::own)
      .def_readonly("peer", &Rail::peer)
      .def_readonly("bandwidth", &Rail::bandwidth);

  py::class_<IpPath>(module, "IpPath", "A pair of NICs; -1 for a rank without an address.")
      .def_readonly("own", &IpPath::own)
      .def_readonly("peer", &IpPath::peer)
      .def_readonly("common", &IpPath::common);

  py::class_<Zone>(module, "Zone",
                   "Hosts behind a shared uplink. uplink: bytes per second and direction; 0: no "
                   "known limit. hosts: ascending.")
      .def_readonly("name", &Zone::name)
      .def_readonly("uplink", &Zone::uplink)
      .def_readonly("hosts", &Zone::hosts);

  py::class_<Topology>(module, "Topology",
                       "The facts of all ranks, in order of rank, and what follows. Immutable.")
      .def(py::init(
               [](std::vector<RankInfo> ranks, const std::vector<UnreachableTuple>& unreachable) {
                 std::vector<UnreachablePair> found;
                 for (const auto& [network, address, other] : unreachable) {
                   found.push_back({network, address, other});
                 }
                 return Topology(std::move(ranks), found);
               }),
           py::arg("ranks"), py::arg("unreachable") = std::vector<UnreachableTuple>())
      .def_property_readonly(
          "unreachable",
          [](const Topology& self) {
            std::vector<UnreachableTuple> found;
            for (const UnreachablePair& one : self.unreachable()) {
              found.emplace_back(one.network, one.address, one.other);
            }
            return found;
          },
          "Network, address and other address of each pair of NICs whose probe failed.")
      .def("__len__", &Topology::size)
      .def_property_readonly("ranks",
                             [](const Topology& self) {
                               std::vector<RankInfo> ranks;
                               for (int r = 0; r < self.size(); ++r) ranks.push_back(self.rank(r));
                               return ranks;
                             })
      .def_property_readonly("islands", &Topology::islands)
      .def_property_readonly("hosts", &Topology::hosts)
      .def_property_readonly("zones", &Topology::zones,
                             "The zones of each level, the widest level first.")
      .def("without_speeds", &Topology::without_speeds,
           "The same layout, as if all links and processors were alike.")
      .def_property_readonly("fingerprint", &Topology::fingerprint)
      .def("rank", &of_rank<&Topology::rank>)
      .def("island_of", &of_rank<&Topology::island_of>)
      .def("index_in_island", &of_rank<&Topology::index_in_island>)
      .def("native", &of_rank<&Topology::native>,
           "Whether a native library serves the rank's island.")
      .def(
          "staged",
          [](const Topology& self, int rank, int peer, std::optional<int64_t> bytes) {
            rank = checked_rank(self, rank);
            peer = checked_rank(self, peer);
            return bytes ? self.staged(rank, peer, *bytes) : self.staged(rank, peer);
          },
          py::arg("rank"), py::arg("peer"), py::arg("bytes") = py::none(),
          "Whether messages with `peer` pass through host staging at the end of `rank`: all "
          "messages, or a message of so many bytes.")
      .def(
          "stages_between_islands",
          [](const Topology& self, int rank, int64_t bytes) {
            return self.stages_between_islands(checked_rank(self, rank), bytes);
          },
          py::arg("rank"), py::arg("bytes") = 0,
          "Whether messages of so many bytes with any other island pass through host staging at "
          "this end.")
      .def(
          "island_network",
          [](const Topology& self, int island) {
            return self.island_network(checked(island, self.islands().size(), "an island"));
          },
          "The network of an island between hosts.")
      .def("host_of", &of_rank<&Topology::host_of>)
      .def("same_host", &of_pair<&Topology::same_host>)
      .def("processors", &of_host<&Topology::processors>, py::arg("host"),
           "The number of processors on which the ranks of a host may run.")
      .def("host_bandwidth", &of_host<&Topology::host_bandwidth>, py::arg("host"),
           "Bytes per second and direction that leave a host.")
      .def("uplink", &of_rank<&Topology::uplink>,
           "The rank's fair share of its host's bandwidth, bytes per second and direction.")
      .def("fabric_between", &of_pair<&Topology::fabric_between>)
      .def("rails", &of_pair<&Topology::rails>, py::arg("a"), py::arg("b"),
           "The NICs that long messages between two ranks use together, by index at each end.")
      .def("ip_path", &of_pair<&Topology::ip_path>, py::arg("a"), py::arg("b"),
           "The NICs that carry IP packets between two ranks, by index at each end.");
}

const Binding facts(10, bind_facts);
const Binding topology(11, bind_topology);

}  // namespace
}  // namespace hetcomm
