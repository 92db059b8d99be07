#include "plan/plan.h"

#include <pybind11/operators.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "codec/codec.h"
#include "core/binding.h"
#include "plan/builder.h"
#include "plan/message.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

void bind_spec(py::module_& module) {
  enumerate(module, "Collective", "A collective operation.", Collective::recv);
  const Spec usual;
  py::class_<Spec>(module, "Spec",
                   "What is to be done. count: elements of the whole buffer for all_reduce, "
                   "broadcast and reduce, of one rank's block for the others. in_place: input and "
                   "output are the same memory (all_reduce, reduce and broadcast only). splits: "
                   "for an all_to_all with unequal blocks, n x n row-major, element "
                   "from * n + to; or of splits_rank alone, to each rank and then from each rank. "
                   "Immutable and hashable.")
      .def(py::init([](Collective collective, Dtype dtype, ReduceOp op, int root, int64_t count,
                       bool in_place, std::vector<int64_t> splits, double factor,
                       const std::string& codec, bool feedback, int splits_rank) {
             const CodecSetting setting = codec == "group" ? kCodecOfGroup : codec_setting(codec);
             return Spec{collective,        dtype,   op,       factor,     root, count, in_place,
                         std::move(splits), setting, feedback, splits_rank};
           }),
           py::arg("collective"), py::arg("dtype") = usual.dtype, py::arg("op") = usual.op,
           py::kw_only(), py::arg("root") = usual.root, py::arg("count") = usual.count,
           py::arg("in_place") = usual.in_place, py::arg("splits") = usual.splits,
           py::arg("factor") = usual.factor, py::arg("codec") = "group",
           py::arg("feedback") = false, py::arg("splits_rank") = usual.splits_rank)
      .def_readonly("collective", &Spec::collective)
      .def_readonly("dtype", &Spec::dtype)
      .def_readonly("op", &Spec::op)
      .def_readonly("factor", &Spec::factor)
      .def_readonly("root", &Spec::root)
      .def_readonly("count", &Spec::count)
      .def_readonly("in_place", &Spec::in_place)
      .def_readonly("splits", &Spec::splits)
      .def_readonly("splits_rank", &Spec::splits_rank)
      .def_property_readonly(
          "codec", [](const Spec& self) { return name_of(self.codec); },
          "Of long messages between hosts: \"group\", or one of codecs().")
      .def_readonly("feedback", &Spec::feedback)
      .def(
          "with_codec",
          [](Spec self, const std::string& codec) {
            self.codec = codec == "group" ? kCodecOfGroup : codec_setting(codec);
            return self;
          },
          py::arg("codec"), "The same with another codec.")
      .def("residual_count", &residual_count, py::arg("size"),
           "float32 elements of the residual of a call with feedback among `size` ranks.")
      .def(
          "buffer_counts",
          [](const Spec& self, int rank, int size) {
            const BufferCounts counts = buffer_counts(self, rank, size);
            return std::pair(counts.input, counts.output);
          },
          py::arg("rank"), py::arg("size"),
          "Elements of the input and output that `rank` of `size` ranks supplies.")
      .def("largest_buffer", &largest_buffer, py::arg("size"),
           "Bytes of the largest buffer that any of `size` ranks supplies.")
      .def(py::self == py::self)
      .def("__hash__", py::overload_cast<const Spec&>(&hash))
      .def("__repr__", [](const Spec& self) { return "<Spec " + describe(self) + ">"; });
}

void bind_steps(py::module_& module) {
  enumerate(module, "Space", "A buffer of a rank.", Space::residual);
  py::class_<StepKind, std::unique_ptr<StepKind, py::nodelete>> kinds(
      module, "StepKind", "What a step does: one of the attributes of this class, by its name.");
  kinds.def_property_readonly("name", [](const StepKind& self) { return self.name; })
      .def("__repr__",
           [](const StepKind& self) { return std::string("<StepKind ") + self.name + ">"; });
  py::dict members;  // as of an enumeration
  for (const StepKind* kind : step_kinds()) {
    members[kind->name] = py::cast(kind, py::return_value_policy::reference);
    kinds.attr(kind->name) = members[kind->name];
  }
  kinds.attr("__members__") = members;
  py::class_<Range>(module, "Range", "Elements in a row in a buffer, from byte `offset` on.")
      .def(py::init([](Space space, int64_t offset, int64_t count, Dtype dtype) {
             return Range{space, offset, count, dtype};
           }),
           py::arg("space") = Space::input, py::arg("offset") = 0, py::arg("count") = 0,
           py::arg("dtype") = Dtype::float32)
      .def_readwrite("space", &Range::space)
      .def_readwrite("offset", &Range::offset)
      .def_readwrite("count", &Range::count)
      .def_readwrite("dtype", &Range::dtype)
      .def_property(
          "codec",
          [](const Range& self) { return self.codec ? self.codec->name() : std::string("none"); },
          [](Range& self, const std::string& name) {
            const CodecSetting setting = codec_setting(name);
            if (setting.automatic) {
              throw Error(Code::invalid_argument, "codec: expected a codec; got \"auto\"");
            }
            self.codec = setting.codec;
          },
          "How the elements are encoded: none, or the name of a codec.")
      .def_property_readonly("bytes", &Range::bytes)
      .def_property_readonly("end", &Range::end, "offset + bytes")
      .def_property_readonly("message_bytes", &Range::message_bytes,
                             "Bytes that a message with these elements is expected to have.")
      .def(py::self == py::self)
      .def("__repr__", [](const Range& self) { return "<Range " + describe(self) + ">"; });
  py::class_<Piece>(module, "Piece", "A part of an island collective. from_, to: ranks, or -1.")
      .def(py::init([](int from, int to, Range source, Range target) {
             return Piece{from, to, source, target};
           }),
           py::arg("from_") = -1, py::arg("to") = -1, py::arg("source") = Range(),
           py::arg("target") = Range())
      .def_readwrite("from_", &Piece::from)
      .def_readwrite("to", &Piece::to)
      .def_readwrite("source", &Piece::source)
      .def_readwrite("target", &Piece::target)
      .def(py::self == py::self);
  py::class_<Step>(module, "Step",
                   "One entry of a plan. Lists are copies: assign the whole field to change it.")
      .def(py::init([](const StepKind* kind, int peer, int tag, std::vector<Range> sources,
                       Range target, std::vector<Piece> pieces, std::vector<int> after,
                       bool scaled) {
             return Step{
                 kind,  peer, tag, std::move(sources), target, std::move(pieces), std::move(after),
                 scaled};
           }),
           py::arg("kind").none(false), py::arg("peer") = -1, py::arg("tag") = 0,
           py::arg("sources") = std::vector<Range>(), py::arg("target") = Range(),
           py::arg("pieces") = std::vector<Piece>(), py::arg("after") = std::vector<int>(),
           py::arg("scaled") = false)
      .def_property(
          "kind", [](const Step& self) { return self.kind; },
          [](Step& self, const StepKind& kind) { self.kind = &kind; },
          py::return_value_policy::reference)
      .def_readwrite("peer", &Step::peer)
      .def_readwrite("tag", &Step::tag)
      .def_readwrite("sources", &Step::sources)
      .def_readwrite("target", &Step::target)
      .def_readwrite("pieces", &Step::pieces)
      .def_readwrite("after", &Step::after)
      .def_readwrite("scaled", &Step::scaled)
      .def("reads", &reads, py::arg("rank"), "The ranges that this step of `rank` reads.")
      .def("writes", &writes, py::arg("rank"))
      .def(py::self == py::self)
      .def("__repr__", [](const Step& self) { return "<Step " + describe(self) + ">"; });
}

void bind_plan(py::module_& module) {
  bind_spec(module);
  bind_steps(module);
  py::class_<Plan, std::shared_ptr<Plan>>(
      module, "Plan",
      "What one rank does for one collective. scratch_bytes, staging_bytes: memory "
      "that it needs. Lists are copies: assign the whole field to change it.")
      .def(py::init([](Spec spec, int rank, int size, std::string algorithm,
                       std::vector<int> members, std::vector<Step> steps, int64_t scratch_bytes,
                       int64_t staging_bytes) {
             return Plan{std::move(spec),
                         rank,
                         size,
                         std::move(algorithm),
                         std::move(members),
                         std::move(steps),
                         scratch_bytes,
                         staging_bytes};
           }),
           py::arg("spec"), py::arg("rank") = 0, py::arg("size") = 1, py::arg("algorithm") = "",
           py::arg("members") = std::vector<int>(), py::arg("steps") = std::vector<Step>(),
           py::arg("scratch_bytes") = 0, py::arg("staging_bytes") = 0)
      .def_readwrite("spec", &Plan::spec)
      .def_readwrite("rank", &Plan::rank)
      .def_readwrite("size", &Plan::size)
      .def_readwrite("algorithm", &Plan::algorithm)
      .def_readonly("auto_codec", &Plan::auto_codec)
      .def_readwrite("members", &Plan::members)
      .def_readwrite("steps", &Plan::steps)
      .def_readwrite("scratch_bytes", &Plan::scratch_bytes)
      .def_readwrite("staging_bytes", &Plan::staging_bytes)
      .def("__str__", [](const Plan& self) {
        std::string text = describe(self.spec) + " by " + self.algorithm + ", rank " +
                           std::to_string(self.rank) + " of " + std::to_string(self.size);
        for (size_t i = 0; i < self.steps.size(); ++i) {
          text.append("\n").append(std::to_string(i)).append(": ");
          text.append(describe(self.steps[i]));
        }
        return text;
      });
}

void bind_message_plan(py::module_& module) {
  module.def("message_plan", &message_plan, py::arg("topology"), py::arg("rank"),
             py::arg("direction"), py::arg("peer"), py::arg("dtype"), py::arg("count"),
             "What one rank does to send to a peer, or to receive from it.");
}

const Binding plan_binding(20, bind_plan);
const Binding messages(20, bind_message_plan);

}  // namespace
}  // namespace hetcomm
