#include "exec/trace.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "comm/communicator.h"
#include "core/binding.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

// A step of a trace, with its facts from the plan.
struct Span {
  std::string kind;
  std::vector<int> peers;
  int64_t bytes = 0;
  bool staging = false;
  int64_t start = 0, end = 0;
};

Span span_of(const Trace& trace, size_t index) {
  const Plan& plan = *trace.plan;
  const Step& step = plan.steps[index];
  Span span{
      .kind = step.kind->name, .start = trace.steps[index].start, .end = trace.steps[index].end};
  int64_t count = step.target.count;
  if (step.is_message()) {
    span.peers = {step.peer};
    span.bytes = step.message().message_bytes();
    return span;
  }
  if (step.in_island()) {
    for (int rank : plan.members) {
      if (rank != plan.rank) span.peers.push_back(rank);
    }
    for (const Piece& piece : step.pieces) count += piece.source.count;
  } else {
    span.staging =
        (step.sources[0].space == Space::staging) != (step.target.space == Space::staging);
    if (span.staging) {  // perhaps of encoded elements
      span.bytes = step.target.bytes();
      return span;
    }
  }
  span.bytes = count * static_cast<int64_t>(size_of(plan.spec.dtype));
  return span;
}

std::vector<Span> spans_of(const Trace& trace) {
  std::vector<Span> spans;
  for (size_t index = 0; index < trace.steps.size(); ++index) {
    if (trace.steps[index].end >= 0) spans.push_back(span_of(trace, index));
  }
  return spans;
}

void bind_trace(py::module_& module) {
  py::class_<Span>(
      module, "Span",
      "One step of an operation. kind: that of the plan's step; peers: the rank at the "
      "other end of a message, the other members of the island in one of its steps; "
      "bytes: of the message (as expected where lossless encodes), or of the pieces that an island "
      "step of this rank lists; staging: it copies between device memory and staging. start, end: "
      "ns since the operation was "
      "submitted; a message starts when the transport has it.")
      .def_readonly("kind", &Span::kind)
      .def_readonly("peers", &Span::peers)
      .def_readonly("bytes", &Span::bytes)
      .def_readonly("staging", &Span::staging)
      .def_readonly("start", &Span::start)
      .def_readonly("end", &Span::end)
      .def("__repr__", [](const Span& self) {
        return "<Span " + self.kind + " " + std::to_string(self.start) + " to " +
               std::to_string(self.end) + " ns>";
      });
  py::class_<Trace, std::shared_ptr<Trace>>(
      module, "Trace",
      "When one operation was under way. submitted: ns of the clock of time.perf_counter_ns(); "
      "started, ended: ns since then, of its first step and of the whole.")
      .def_property_readonly("operation",
                             [](const Trace& self) { return describe(self.plan->spec); })
      .def_property_readonly("algorithm", [](const Trace& self) { return self.plan->algorithm; })
      .def_property_readonly("submitted",
                             [](const Trace& self) {
                               return std::chrono::duration_cast<std::chrono::nanoseconds>(
                                          self.submitted.time_since_epoch())
                                   .count();
                             })
      .def_readonly("started", &Trace::started)
      .def_readonly("ended", &Trace::ended)
      .def_property_readonly("spans", &spans_of,
                             "Its steps that were completed, in the order of the plan.");
  module.def(
      "traces_of",
      [](const py::capsule& given) {
        using Traces = std::vector<std::shared_ptr<const Trace>>;
        std::vector<std::shared_ptr<Trace>> traces;
        if (std::string_view(given.name()) != "hetcomm.traces") throw py::type_error(given.name());
        for (const auto& trace : *given.get_pointer<Traces>()) {
          traces.push_back(std::const_pointer_cast<Trace>(trace));
        }
        return traces;
      },
      py::arg("traces"), "The traces in the capsule that _torch.end_trace() has returned.");
}

const Binding trace_binding(39, bind_trace);  // before communicators, which return them

}  // namespace
}  // namespace hetcomm
