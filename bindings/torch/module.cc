#include <pybind11/chrono.h>
#include <torch/extension.h>

#include <algorithm>

#include "torch/backend.h"
#include "torch/callbacks.h"

namespace py = pybind11;

namespace {

hetcomm::TorchBackend& ours(c10d::Backend& backend) {
  if (auto* found = dynamic_cast<hetcomm::TorchBackend*>(&backend)) return *found;
  TORCH_CHECK_VALUE(false, "expected a group of hetcomm; got one of ", backend.getBackendName());
}

}  // namespace

PYBIND11_MODULE(_torch, module) {
  module.doc() = "hetcomm as a torch.distributed backend.";
  module.def(
      "create_backend",
      [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, double timeout,
         const std::string& name, const std::string& vendor, int device) {
        py::gil_scoped_release release;
        return hetcomm::with_python_errors([&]() -> c10::intrusive_ptr<c10d::Backend> {
          return c10::make_intrusive<hetcomm::TorchBackend>(
              store, rank, size, hetcomm::timeout_of(hetcomm::Seconds(timeout)), name, vendor,
              device);
        });
      },
      py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("name"),
      py::arg("vendor"), py::arg("device"),
      "A c10d Backend over a new communicator; timeout in seconds.");
  module.def(
      "finish_callbacks", [] { hetcomm::finish_callbacks(std::chrono::seconds(5)); },
      py::call_guard<py::gil_scoped_release>(),
      "Waits up to 5 s for what users have attached to futures.");
  module.def(
      "register_buffer",
      [](const c10::intrusive_ptr<c10d::Backend>& backend, const at::Tensor& tensor) {
        py::gil_scoped_release release;
        ours(*backend).register_buffer(tensor);
      },
      py::arg("backend"), py::arg("tensor"));
  module.def(
      "deregister_buffer",
      [](const c10::intrusive_ptr<c10d::Backend>& backend, const at::Tensor& tensor) {
        py::gil_scoped_release release;
        ours(*backend).deregister_buffer(tensor);
      },
      py::arg("backend"), py::arg("tensor"));
}
