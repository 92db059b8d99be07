#include "device/device.h"

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/instruction_set.h"
#include "base/status.h"
#include "core/arguments.h"
#include "core/binding.h"
#include "core/bytes.h"
#include "device/reduce.h"
#include "python/error_text.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

void reduce_buffers(Dtype dtype, ReduceOp op, py::handle target_object,
                    const py::sequence& source_objects, double factor) {
  if (!reducible(dtype, op)) {
    throw Error(Code::invalid_argument,
                std::string("expected a reducible dtype and operation; got ") + name(op) + " of " +
                    name(dtype));
  }
  if (source_objects.size() == 0) {
    throw Error(Code::invalid_argument, "sources: expected at least one buffer; got none");
  }
  const Bytes target(target_object, "target", true);
  const size_t elements = count_of(target, "target", size_of(dtype));
  std::vector<Bytes> sources;
  std::vector<const void*> pointers;
  for (py::handle object : source_objects) {
    const std::string role = "source " + std::to_string(sources.size());
    const Bytes& source = sources.emplace_back(object, role, false);
    expect_size(source, role, target.size());
    expect_apart(target, source, role, true);
    pointers.push_back(source.data());
  }
  const py::gil_scoped_release release;
  const int count = static_cast<int>(pointers.size());
  if (scales(op)) {
    const bool divides = op == ReduceOp::average;
    const Scale scale = rounded(dtype, {divides ? count : factor, divides});
    scaled_sum(dtype, scale, target.data(), pointers.data(), count, elements);
  } else {
    reduce(dtype, op, target.data(), pointers.data(), count, elements);
  }
}

void call_python(void* argument) {
  const py::gil_scoped_acquire acquire;
  const std::unique_ptr<py::function> function(static_cast<py::function*>(argument));
  try {
    (*function)();
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("a function called in a stream");
  }
}

bool passed(Device& device, uintptr_t event) {
  Status status;
  const bool over = device.passed(pointer(event), status);
  check(status);
  return over;
}

void bind_class_device(py::module_& module) {
  using Released = py::call_guard<py::gil_scoped_release>;
  py::class_<Device, std::shared_ptr<Device>>(
      module, "Device",
      "An accelerator; memory, streams and events are addresses. Methods raise VendorError.")
      .def_static("open", &Device::open, py::arg("vendor"), py::arg("index"), Released())
      .def_static("count", &Device::count, py::arg("vendor"), Released())
      .def_property_readonly("vendor", [](const Device& self) { return self.vendor().name; })
      .def_property_readonly("index", &Device::index)
      .def_property_readonly("emulated", &Device::emulated)
      .def_property_readonly("description", &Device::describe)
      .def_property_readonly("name", &Device::name)
      .def_property_readonly("bus", &Device::bus)
      .def(
          "make_stream", [](Device& self) { return address(self.make_stream()); }, Released())
      .def(
          "destroy", [](Device& self, uintptr_t stream) { self.destroy(pointer(stream)); },
          Released())
      .def(
          "make_event", [](Device& self) { return address(self.make_event()); }, Released())
      .def("destroy_event",
           [](Device& self, uintptr_t event) { self.destroy_event(pointer(event)); })
      .def(
          "allocate", [](Device& self, size_t bytes) { return address(self.allocate(bytes)); },
          Released())
      .def(
          "release", [](Device& self, uintptr_t memory) { self.release(pointer(memory)); },
          Released())
      .def(
          "allocate_pinned",
          [](Device& self, size_t bytes) { return address(self.allocate_pinned(bytes)); },
          Released())
      .def(
          "release_pinned",
          [](Device& self, uintptr_t memory) { self.release_pinned(pointer(memory)); }, Released())
      .def("trim", &Device::trim, Released())
      .def(
          "copy",
          [](Device& self, uintptr_t target, uintptr_t source, size_t bytes, uintptr_t stream) {
            check(self.copy(pointer(target), pointer(source), bytes, pointer(stream)));
          },
          py::arg("target"), py::arg("source"), py::arg("bytes"), py::arg("stream"), Released())
      .def("record", [](Device& self, uintptr_t event,
                        uintptr_t stream) { check(self.record(pointer(event), pointer(stream))); })
      .def("wait_event", [](Device& self, uintptr_t stream,
                            uintptr_t event) { check(self.wait(pointer(stream), pointer(event))); })
      .def("passed", &passed, py::arg("event"))
      .def(
          "call",
          [](Device& self, uintptr_t stream, py::function function) {
            auto kept = std::make_unique<py::function>(std::move(function));
            check(self.call(pointer(stream), &call_python, kept.get()));
            kept.release();
          },
          py::arg("stream"), py::arg("function"))
      .def("holds",
           [](const Device& self, uintptr_t memory) { return self.holds(pointer(memory)); })
      .def("capturing",
           [](const Device& self, uintptr_t stream) { return self.capturing(pointer(stream)); });

  py::class_<Pool>(module, "Pool", "Blocks kept for reuse; `make` and `free` are given addresses.")
      .def(py::init([](const std::function<uintptr_t(size_t)>& make,
                       const std::function<void(uintptr_t)>& free, int64_t most_kept) {
             return std::make_unique<Pool>(
                 [make](size_t bytes) {
                   try {
                     return pointer(make(bytes));
                   } catch (const py::error_already_set& error) {
                     throw Error(Code::vendor, text_of(error));
                   }
                 },
                 [free](void* block) { free(address(block)); }, most_kept);
           }),
           py::arg("make"), py::arg("free"), py::arg("most_kept"))
      .def("take", [](Pool& self, size_t bytes) { return address(self.take(bytes)); })
      .def("give", [](Pool& self, uintptr_t block) { self.give(pointer(block)); })
      .def("trim", &Pool::trim)
      .def_static("rounded", &Pool::rounded);
}

void bind_device(py::module_& module) {
  bind_class_device(module);
  module.def("reduce", &reduce_buffers, py::arg("dtype"), py::arg("op"), py::arg("target"),
             py::arg("sources"), py::arg("factor") = 1.0,
             "target[i] = sources[0][i] op sources[1][i] op ..., in that order; for average and "
             "premul_sum their sum, divided by their number or times `factor`.\n\n"
             "Contiguous buffers of equal length in bytes, read as `dtype`, not as their own type "
             "(so bfloat16 may come as uint16). The target may be one of the sources. Raises "
             "InvalidArgumentError.");
  module.def(
      "instruction_set", [] { return name(instruction_set()); },
      "The instructions of reduce(): \"baseline\", \"avx2\" or \"avx512\". HETCOMM_ISA "
      "lowers them; "
      "raises InvalidArgumentError where the processor lacks that one.");
}

const Binding device_binding(10, bind_device);

}  // namespace
}  // namespace hetcomm
