#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "base/status.h"
#include "core/binding.h"
#include "plan/checker.h"
#include "plan/cost.h"
#include "plan/island_cost.h"
#include "plan/planner.h"
#include "plan/step_cost.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

void bind_cost(py::module_& module) {
  py::class_<CostParameters>(
      module, "CostParameters",
      "Constants of the cost model, in ns and bytes per second. A profile overrides them.")
      .def(py::init(
               [](std::shared_ptr<Profile> profile) { return CostParameters(std::move(profile)); }),
           py::arg("profile") = nullptr)
      .def_readwrite("island_latency", &CostParameters::island_latency)
      .def_readwrite("link_latency_tcp", &CostParameters::link_latency_tcp)
      .def_readwrite("link_latency_rdma", &CostParameters::link_latency_rdma)
      .def_readwrite("message_gap_tcp", &CostParameters::message_gap_tcp)
      .def_readwrite("message_gap_rdma", &CostParameters::message_gap_rdma)
      .def_readwrite("memory_bandwidth", &CostParameters::memory_bandwidth)
      .def_readwrite("codec_bandwidth", &CostParameters::codec_bandwidth)
      .def_readwrite("step_overhead", &CostParameters::step_overhead)
      .def_readwrite("assumed_bandwidth", &CostParameters::assumed_bandwidth)
      .def_readwrite("copy_bandwidth", &CostParameters::copy_bandwidth)
      .def_readwrite("replayed_ranks", &CostParameters::replayed_ranks);
  module.def(
      "island_time",
      [](const CostParameters& parameters, int64_t members, int64_t ranks, int64_t cores,
         Collective collective, int64_t bytes) {
        if (members < 1 || ranks < members || cores < 1 || bytes < 0) {
          throw Error(Code::invalid_argument,
                      "island_time: expected members from 1, as many ranks or more, a processor "
                      "or more and bytes from 0, got " +
                          std::to_string(members) + ", " + std::to_string(ranks) + ", " +
                          std::to_string(cores) + " and " + std::to_string(bytes));
        }
        return island_time(parameters, {members, ranks, cores}, collective, bytes);
      },
      py::arg("parameters"), py::arg("members"), py::arg("ranks"), py::arg("cores"),
      py::arg("collective"), py::arg("bytes"),
      "Predicted ns of one of profiled_collectives() in an island, of `ranks` of one host.");
  py::class_<Cost>(module, "Cost",
                   "Predicted ns: total; island, the busiest rank's island steps, copies and "
                   "reductions; staging, the busiest copy engine; bridge, the busiest direction of "
                   "NICs or uplinks. bridge_bytes: sent by the busiest host to other hosts.")
      .def_readonly("total", &Cost::total)
      .def_readonly("island", &Cost::island)
      .def_readonly("staging", &Cost::staging)
      .def_readonly("bridge", &Cost::bridge)
      .def_readonly("bridge_bytes", &Cost::bridge_bytes)
      .def("__repr__", [](const Cost& self) {
        return "<Cost " + std::to_string(self.total) + " ns, island " +
               std::to_string(self.island) + " ns, bridge " + std::to_string(self.bridge) +
               " ns, " + std::to_string(self.bridge_bytes) + " bytes>";
      });
  module.def(
      "predict",
      [](const Topology& topology, const std::vector<Plan>& plans,
         const CostParameters& parameters) { return predict(topology, plans, parameters); },
      py::arg("topology"), py::arg("plans"), py::arg("parameters") = CostParameters(),
      py::call_guard<py::gil_scoped_release>(),
      "What executing the plans of all ranks, in rank order, costs. InvalidArgumentError for plans "
      "that cannot run to their end.");
  module.def(
      "timeline",
      [](const Topology& topology, const std::vector<Plan>& plans,
         const CostParameters& parameters) {
        Timeline timeline;
        predict(topology, plans, parameters, &timeline);
        std::vector<std::vector<std::pair<int64_t, int64_t>>> spans(timeline.size());
        for (size_t rank = 0; rank < timeline.size(); ++rank) {
          for (const Interval& span : timeline[rank]) {
            spans[rank].emplace_back(span.start, span.end);
          }
        }
        return spans;
      },
      py::arg("topology"), py::arg("plans"), py::arg("parameters") = CostParameters(),
      "(start, end) in predicted ns for each rank and step.");
  module.def(
      "step_times",
      [](const Topology& topology, const Plan& plan, const CostParameters& parameters) {
        const StepCost cost(topology, parameters);
        std::vector<int64_t> times;
        for (const Step& step : plan.steps) times.push_back(cost.busy(step, plan.rank));
        return times;
      },
      py::arg("topology"), py::arg("plan"), py::arg("parameters") = CostParameters(),
      "Predicted ns of each step of one rank, without waits.");
}

void bind_checker(py::module_& module) {
  module.def(
      "check",
      [](const Topology& topology, const std::vector<Plan>& plans) {
        return check(topology, plans);
      },
      py::arg("topology"), py::arg("plans"), py::call_guard<py::gil_scoped_release>(),
      "What is wrong with the plans of all ranks, in rank order; empty if nothing.");
  module.def(
      "check_algorithm",
      [](const Planner& planner, const Spec& spec, const Algorithm& algorithm) {
        return check(planner.topology(), planner.plan_all(spec, algorithm));
      },
      py::arg("planner"), py::arg("spec"), py::arg("algorithm"),
      py::call_guard<py::gil_scoped_release>(),
      "check() of the plans that one algorithm makes, without a copy of them in Python.");
}

const Binding cost(20, bind_cost);  // before the planner, whose candidates have one
const Binding checker(22, bind_checker);

}  // namespace
}  // namespace hetcomm
