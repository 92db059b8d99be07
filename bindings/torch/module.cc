#include <pybind11/chrono.h>
#include <torch/extension.h>
#include <torch/version.h>

#include <algorithm>

#include "base/timeout.h"
#include "torch/backend.h"

namespace py = pybind11;

namespace {

hetcomm::TorchBackend& torch_backend(c10d::Backend& backend) {
  if (auto* found = dynamic_cast<hetcomm::TorchBackend*>(&backend)) return *found;
  TORCH_CHECK_VALUE(false, "expected a group of hetcomm; got one of ", backend.getBackendName());
}

c10::intrusive_ptr<hetcomm::TorchBackend> make_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const py::object& timeout,
    const py::object& device, const std::string& name, const std::string& bridge_codec) {
  // Python's seconds do not overflow for the longest timedelta.
  const hetcomm::Seconds seconds(timeout.attr("total_seconds")().cast<double>());
  const auto [vendor, index] = py::module_::import("hetcomm.backend")
                                   .attr("vendor_and_index")(device)
                                   .cast<std::pair<std::string, int>>();
  const py::gil_scoped_release release;
  return hetcomm::with_python_errors([&] {
    return c10::make_intrusive<hetcomm::TorchBackend>(
        store, rank, size, hetcomm::given_timeout(seconds), name, vendor, index, bridge_codec);
  });
}

}  // namespace

PYBIND11_MODULE(_torch, module) {
  module.doc() = "hetcomm as a torch.distributed backend.";
  module.attr("built_for") = TORCH_VERSION;
  py::class_<hetcomm::GroupOptions, c10d::Backend::Options,
             c10::intrusive_ptr<hetcomm::GroupOptions>>(
      module, "Options", "The options of a group; torch copies them to split the group.")
      .def(py::init([](const std::string& bridge_codec) {
             hetcomm::with_python_errors([&] {
               if (!bridge_codec.empty()) hetcomm::codec_setting(bridge_codec);
             });
             return c10::make_intrusive<hetcomm::GroupOptions>(c10d::kUnsetTimeout, bridge_codec);
           }),
           py::kw_only(), py::arg("bridge_codec") = "",
           R"(For init_process_group(pg_options=...) and new_group(pg_options=...).

Args:
    bridge_codec: of long messages between hosts, equal on every rank; "" is
        HETCOMM_BRIDGE_CODEC. See docs/codecs.md.

Raises:
    hetcomm.InvalidArgumentError: there is no such codec.)")
      .def_readonly("bridge_codec", &hetcomm::GroupOptions::bridge_codec)
      .def(
          "__deepcopy__",
          [](const hetcomm::GroupOptions& self, const py::dict&) {
            return c10::make_intrusive<hetcomm::GroupOptions>(self);
          },
          py::arg("memo"));
  py::class_<hetcomm::TorchBackend, c10d::Backend, c10::intrusive_ptr<hetcomm::TorchBackend>>(
      module, "ProcessGroupHetcomm", "A c10d Backend over a communicator of its own.")
      .def(py::init(&make_backend), py::arg("store"), py::arg("rank"), py::arg("size"),
           py::arg("timeout") = std::chrono::seconds(std::chrono::minutes(30)), py::kw_only(),
           py::arg("device") = py::none(), py::arg("name") = "default",
           py::arg("bridge_codec") = "",
           R"(Joins; blocks until all ranks have joined.

For tools that build process groups by hand, see docs/torch.md.

Args:
    store: of torch; each group needs keys of its own, as by torch.distributed.PrefixStore.
    timeout: a timedelta, for the set-up, and for operations that have none of their own.
    device: a torch.device, whose tensors the group takes; None: what
        init_process_group("hetcomm") would serve.
    name: for messages.
    bridge_codec: of long messages between hosts; "" is HETCOMM_BRIDGE_CODEC.

Raises:
    hetcomm.Error: a rank cannot take part; on every rank.)")
      .def(
          "perform_nocolor_split", [](hetcomm::TorchBackend&, const py::object&) {},
          py::arg("device"), "torch calls it on ranks outside of a new group; it does nothing.")
      .def_property_readonly("options", &hetcomm::TorchBackend::getBackendOptions,
                             "A copy of the group's options.")
      .def("get_error", &hetcomm::TorchBackend::getError, py::call_guard<py::gil_scoped_release>(),
           "The group's failure; SUCCESS while the group is usable.")
      .def("comm_split_count", &hetcomm::TorchBackend::children,
           "How many groups were made from this group.")
      .def_property_readonly(
          "direct_calls",
          [](const hetcomm::TorchBackend& self) {
            const py::gil_scoped_release release;
            return self.communicator().direct_calls();
          },
          "How many collectives read shared allocations in place.");
  module.def(
      "register_buffer",
      [](const c10::intrusive_ptr<c10d::Backend>& backend, const at::Tensor& tensor) {
        const py::gil_scoped_release release;
        torch_backend(*backend).register_buffer(tensor);
      },
      py::arg("backend"), py::arg("tensor"));
  module.def(
      "begin_trace",
      [](const c10::intrusive_ptr<c10d::Backend>& backend) {
        const py::gil_scoped_release release;
        hetcomm::with_python_errors([&] { torch_backend(*backend).communicator().begin_trace(); });
      },
      py::arg("backend"));
  module.def(
      "end_trace",
      [](const c10::intrusive_ptr<c10d::Backend>& backend) {
        using Traces = std::vector<std::shared_ptr<const hetcomm::Trace>>;
        auto traces = std::make_unique<Traces>();
        {
          const py::gil_scoped_release release;
          *traces = torch_backend(*backend).communicator().end_trace();
        }
        return py::capsule(traces.release(), "hetcomm.traces",
                           [](void* made) { delete static_cast<Traces*>(made); });
      },
      py::arg("backend"),
      "A capsule for _core.traces_of(): this module lacks the classes of _core.");
  module.def(
      "deregister_buffer",
      [](const c10::intrusive_ptr<c10d::Backend>& backend, const at::Tensor& tensor) {
        const py::gil_scoped_release release;
        hetcomm::Communicator& communicator = torch_backend(*backend).communicator();
        hetcomm::with_python_errors([&] { communicator.deregister_buffer(tensor.data_ptr()); });
      },
      py::arg("backend"), py::arg("tensor"));
}
