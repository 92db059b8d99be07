#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "codec/codec.h"
#include "core/binding.h"
#include "plan/planner.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

const Algorithm& algorithm_named(Collective collective, const std::string& wanted) {
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective == collective && algorithm.name == wanted) return algorithm;
  }
  throw py::key_error(std::string(name(collective)) + " has no algorithm " + wanted);
}

std::string name_of(const Codec* codec) { return codec ? codec->name() : "none"; }

void bind_table(py::module_& module) {
  py::class_<SelectionTable> table(
      module, "SelectionTable",
      "Which algorithm serves which collective and size, as text such as "
      "\"all_reduce:0-4k=flat,4k-inf=hierarchical_ring;broadcast:0-inf=auto\". Sizes are bytes of "
      "the collective's largest buffer, lower bound included, upper excluded. Raises "
      "InvalidArgumentError that names the column, what was expected and what came.");
  py::class_<SelectionTable::Row>(table, "Row", "to: 2**63 - 1 stands for inf.")
      .def_readonly("collective", &SelectionTable::Row::collective)
      .def_readonly("from_", &SelectionTable::Row::from)
      .def_readonly("to", &SelectionTable::Row::to)
      .def_readonly("algorithm", &SelectionTable::Row::algorithm);
  table.def(py::init<const std::string&>(), py::arg("text") = "")
      .def("algorithm", &SelectionTable::algorithm, py::arg("collective"), py::arg("bytes"),
           "\"auto\" if no row covers it.")
      .def_property_readonly("rows", &SelectionTable::rows)
      .def("__str__", &SelectionTable::text);
}

void bind_plan_planner(py::module_& module) {
  bind_table(module);
  py::class_<Algorithm, std::unique_ptr<Algorithm, py::nodelete>>(module, "Algorithm",
                                                                  "One way to do a collective.")
      .def_readonly("collective", &Algorithm::collective)
      .def_readonly("name", &Algorithm::name)
      .def_readonly("summary", &Algorithm::summary)
      .def(
          "why_not",
          [](const Algorithm& self, const Topology& topology, const Spec& spec) {
            return self.why_not(topology, spec);
          },
          py::arg("topology"), py::arg("spec"), "Why it does not apply there; empty if it does.")
      .def("__repr__", [](const Algorithm& self) {
        return std::string("<Algorithm ") + name(self.collective) + " " + self.name + ">";
      });
  module.def("algorithms", &algorithms, py::return_value_policy::reference,
             "All algorithms; of equally fast ones the earlier is chosen.");

  py::class_<CodecFigures>(module, "CodecFigures",
                           "What an automatic codec has done in calls of one size class: plain and "
                           "encoded bytes of all ranks; work (bytes encoded and decoded, times the "
                           "codec's effort and the ranks for each processor) and time (ns) of the "
                           "busiest rank.")
      .def(py::init([](int64_t plain, int64_t encoded, int64_t work, int64_t time) {
             return CodecFigures{plain, encoded, work, time};
           }),
           py::kw_only(), py::arg("plain") = 0, py::arg("encoded") = 0, py::arg("work") = 0,
           py::arg("time") = 0)
      .def("add", &CodecFigures::add, py::arg("other_ranks"))
      .def_property_readonly("share", &CodecFigures::share,
                             "Encoded bytes for each 1,000 bytes of elements.")
      .def_property_readonly("rate", &CodecFigures::rate, "Bytes per second.");

  py::class_<Planner, std::shared_ptr<Planner>> planner(
      module, "Planner",
      "Pure function (topology, spec, table, parameters) -> plan, with a cache. Thread-safe. "
      "Raises "
      "InvalidArgumentError for a spec that cannot be.");
  py::class_<Planner::Candidate>(planner, "Candidate")
      .def_property_readonly(
          "algorithm", [](const Planner::Candidate& self) { return self.algorithm; },
          py::return_value_policy::reference)
      .def_readonly("rejected", &Planner::Candidate::rejected)
      .def_readonly("cost", &Planner::Candidate::cost)
      .def_property_readonly("codec",
                             [](const Planner::Candidate& self) { return name_of(self.codec); });
  py::class_<Planner::Choice>(planner, "Choice")
      .def_property_readonly(
          "algorithm", [](const Planner::Choice& self) { return self.algorithm; },
          py::return_value_policy::reference)
      .def_property_readonly(
          "codec", [](const Planner::Choice& self) { return name_of(self.codec); },
          "How long messages between hosts are encoded.")
      .def_readonly("why", &Planner::Choice::why)
      .def_readonly("candidates", &Planner::Choice::candidates);
  planner
      .def(py::init([](const Topology& topology, SelectionTable table, CostParameters parameters,
                       const std::string& codec) {
             return std::make_shared<Planner>(std::make_shared<const Topology>(topology),
                                              std::move(table), std::move(parameters),
                                              codec_setting(codec));
           }),
           py::arg("topology"), py::arg("table") = SelectionTable(),
           py::arg("parameters") = CostParameters(), py::arg("codec") = "none",
           "codec: of long messages between hosts, one of codecs(). auto: where it is faster.")
      .def(
          "plan", [](Planner& self, const Spec& spec, int rank) { return *self.plan(spec, rank); },
          py::arg("spec"), py::arg("rank"), "One rank's plan.")
      .def(
          "plain_plan",
          [](Planner& self, const Spec& spec, int rank) { return *self.plain_plan(spec, rank); },
          py::arg("spec"), py::arg("rank"),
          "The plan by the same algorithm without an automatic codec.")
      .def("codec_pays", &Planner::codec_pays, py::arg("spec"), py::arg("figures"),
           "Whether the automatic codec of the spec's size class is faster, by what was measured.")
      .def("class_name", &Planner::class_name, py::arg("spec"), "The size class of the spec.")
      .def(
          "plan_all",
          [](const Planner& self, const Spec& spec, const std::string& algorithm) {
            if (algorithm == "auto") return self.plan_all(spec);
            return self.plan_all(spec, algorithm_named(spec.collective, algorithm));
          },
          py::arg("spec"), py::arg("algorithm") = "auto",
          "Every rank's plan, in rank order; by a named algorithm or by the one chosen.")
      .def(
          "cost",
          [](const Planner& self, const Spec& spec, const std::string& algorithm) {
            if (algorithm == "auto") return self.cost(spec);
            return self.cost(spec, algorithm_named(spec.collective, algorithm));
          },
          py::arg("spec"), py::arg("algorithm") = "auto",
          "What the spec is predicted to cost, by a named algorithm or by the one chosen.")
      .def_property_readonly(
          "replays", [](const Planner& self) { return self.replays(); },
          "Whether costs follow from a replay of the plans of all ranks.")
      .def(
          "representatives",
          [](const Planner& self, const Spec& spec) {
            std::vector<int> ranks;
            for (const Representative& some : self.representatives(spec)) {
              ranks.push_back(some.rank);
            }
            return ranks;
          },
          py::arg("spec"),
          "The ranks from whose plans the cost follows: all, or of many ranks some of each kind.")
      .def("choose", &Planner::choose, py::arg("spec"),
           "The candidates with their predicted cost or why they were rejected, and the choice.")
      .def(
          "codec_of",
          [](const Planner& self, const Spec& spec) { return name_of(self.codec_for(spec)); },
          py::arg("spec"),
          "The codec setting of the spec, or else of the planner, at the level of the topology.")
      .def("why_not", &Planner::why_not, py::arg("algorithm"), py::arg("spec"),
           "Why the algorithm does not apply to the spec with its codec; empty if it does.")
      .def_property_readonly("topology", &Planner::topology)
      .def_property_readonly("table", &Planner::table);
}

const Binding plan_planner_binding(21, bind_plan_planner);

}  // namespace
}  // namespace hetcomm
