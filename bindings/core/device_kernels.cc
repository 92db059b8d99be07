#include "device/device_kernels.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "codec/codec.h"
#include "core/arguments.h"
#include "core/binding.h"
#include "device/kernel_cache.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

using Address = uintptr_t;

std::vector<const void*> pointers(const std::vector<Address>& addresses) {
  std::vector<const void*> all;
  for (Address address : addresses) all.push_back(pointer(address));
  return all;
}

const Vendor& vendor_named(const std::string& name) {
  if (const Vendor* vendor = find_vendor(name)) return *vendor;
  throw Error(Code::invalid_argument, "expected a vendor with device memory; got " + name);
}

// The parts of a launch, so that a test can run it by itself.
py::tuple parts_of(const KernelLaunch& launch) {
  py::list arguments;
  for (const std::string& argument : launch.arguments) arguments.append(py::bytes(argument));
  return py::make_tuple(launch.kernel, launch.blocks, launch.threads, arguments);
}

py::tuple parts(const Status& status, const KernelLaunch& launch) {
  check(status);
  return parts_of(launch);
}

void bind_launches(py::module_& module) {
  module.def("reduce_launch", [](Dtype dtype, ReduceOp op, Address target,
                                 const std::vector<Address>& sources, size_t count) {
    KernelLaunch launch;
    return parts(reduce_launch(launch, dtype, op, pointer(target), pointers(sources).data(),
                               static_cast<int>(sources.size()), count),
                 launch);
  });
  module.def("scale_launch", [](Dtype dtype, double by, bool divides, Address target,
                                Address source, size_t count) {
    KernelLaunch launch;
    return parts(
        scale_launch(launch, dtype, {by, divides}, pointer(target), pointer(source), count),
        launch);
  });
  module.def("cast_launch", [](Dtype to, Address target, Dtype from, Address source, size_t count) {
    KernelLaunch launch;
    return parts(cast_launch(launch, to, pointer(target), from, pointer(source), count), launch);
  });
  module.def("encode_launches", [](const std::string& codec, Dtype dtype, Address encoded,
                                   Address source, Address residual, size_t count) {
    std::vector<KernelLaunch> launches;
    check(encode_launches(launches, dtype, codec_named(codec, dtype).device_format(),
                          pointer(encoded), pointer(source), static_cast<float*>(pointer(residual)),
                          count));
    py::list all;
    for (const KernelLaunch& launch : launches) all.append(parts_of(launch));
    return all;
  });
  module.def("decode_launch", [](const std::string& codec, Dtype dtype, Address target,
                                 Address first, const std::vector<Address>& encoded, size_t count) {
    KernelLaunch launch;
    return parts(decode_launch(launch, dtype, codec_named(codec, dtype).device_format(),
                               pointer(target), pointer(first), pointers(encoded).data(),
                               static_cast<int>(encoded.size()), count),
                 launch);
  });
}

void bind_device_kernels(py::module_& module) {
  using Released = py::call_guard<py::gil_scoped_release>;
  module.def("device_text", &device_text, "The source of all device kernels.");
  module.def(
      "compile_kernel",
      [](const std::string& vendor, const std::string& architecture, const std::string& kernel) {
        CompiledKernel compiled;
        {
          const py::gil_scoped_release release;
          compiled = compile_kernel(vendor_named(vendor), architecture, kernel);
        }
        return py::make_tuple(py::bytes(compiled.code), compiled.symbol);
      },
      py::arg("vendor"), py::arg("architecture"), py::arg("kernel"),
      "The code of one kernel and its symbol, from NVRTC or hipRTC. Raises VendorError.");
  module.def(
      "cached_kernel",
      [](const std::string& vendor, const std::string& architecture, const std::string& kernel) {
        CompiledKernel compiled;
        {
          const py::gil_scoped_release release;
          compiled = cached_kernel(vendor_named(vendor), architecture, kernel);
        }
        return py::make_tuple(py::bytes(compiled.code), compiled.symbol);
      },
      py::arg("vendor"), py::arg("architecture"), py::arg("kernel"),
      "As compile_kernel(), from the files of earlier processes where they have the kernel.");
  module.def(
      "describe_compiler",
      [](const std::string& vendor) { return describe_compiler(vendor_named(vendor)); },
      py::arg("vendor"), Released());
  bind_launches(module);
  py::class_<DeviceKernels, std::unique_ptr<DeviceKernels, py::nodelete>>(
      module, "DeviceKernels",
      "Arithmetic on device memory. Memory and streams are addresses; calls do not wait.")
      .def_static(
          "of",
          [](Device& device) {
            std::string why_not;
            const DeviceKernels* kernels = DeviceKernels::of(device, why_not);
            if (kernels == nullptr) throw Error(Code::vendor, why_not);
            return const_cast<DeviceKernels*>(kernels);
          },
          py::arg("device"), py::return_value_policy::reference, Released(),
          "Raises VendorError with the reason where the device runs no kernels of ours.")
      .def_property_readonly("description", &DeviceKernels::describe)
      .def(
          "reduce",
          [](const DeviceKernels& self, Dtype dtype, ReduceOp op, Address target,
             const std::vector<Address>& sources, size_t count, Address stream) {
            check(self.reduce(dtype, op, pointer(target), pointers(sources).data(),
                              static_cast<int>(sources.size()), count, pointer(stream)));
          },
          Released())
      .def(
          "scale",
          [](const DeviceKernels& self, Dtype dtype, double by, bool divides, Address target,
             Address source, size_t count, Address stream) {
            check(self.scale(dtype, {by, divides}, pointer(target), pointer(source), count,
                             pointer(stream)));
          },
          Released())
      .def(
          "cast",
          [](const DeviceKernels& self, Dtype to, Address target, Dtype from, Address source,
             size_t count, Address stream) {
            check(self.cast(to, pointer(target), from, pointer(source), count, pointer(stream)));
          },
          Released())
      .def(
          "encode",
          [](const DeviceKernels& self, const std::string& name, Dtype dtype, Address encoded,
             Address source, Address residual, size_t count, Address stream) {
            const Codec& codec = codec_named(name, dtype);
            float* const lost = static_cast<float*>(pointer(residual));
            check(self.encode(dtype, codec.device_format(), pointer(encoded), pointer(source), lost,
                              count, pointer(stream), [=, &codec] {
                                encode_elements(codec, dtype, pointer(encoded), pointer(source),
                                                lost, count);
                              }));
          },
          Released())
      .def(
          "decode",
          [](const DeviceKernels& self, const std::string& name, Dtype dtype, Address target,
             Address first, const std::vector<Address>& encoded, size_t count, Address stream) {
            const Codec& codec = codec_named(name, dtype);
            const std::vector<const void*> all = pointers(encoded);
            const int sources = static_cast<int>(all.size());
            check(self.decode(dtype, codec.device_format(), pointer(target), pointer(first),
                              all.data(), sources, count, pointer(stream), [=, &codec] {
                                sum_or_nan(codec, dtype, pointer(target), pointer(first), all,
                                           count);
                              }));
          },
          Released());
}

// After the binding of Device, which has order 10.
const Binding device_kernels_binding(11, bind_device_kernels);

}  // namespace
}  // namespace hetcomm
