#include "device/quantise.h"

#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <vector>

#include "core/binding.h"
#include "core/bytes.h"
#include "device/cast.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

void cast_buffers(Dtype to, py::handle target_object, Dtype from, py::handle source_object) {
  for (const Dtype dtype : {to, from}) {
    if (class_of(dtype) == DtypeClass::floating) continue;
    throw Error(Code::invalid_argument,
                std::string("cast: expected floating dtypes; got ") + name(dtype));
  }
  const Bytes target(target_object, "target", true);
  const Bytes source(source_object, "source", false);
  const size_t count = count_of(source, "source", size_of(from));
  expect_size(target, "target", count * size_of(to));
  const bool in_place = size_of(from) == size_of(to);
  expect_apart(target, source, "source", in_place);
  const py::gil_scoped_release release;
  cast(to, target.data(), from, source.data(), count);
}

void quantise_buffer(Dtype dtype, const Quantisation& quantisation, py::handle encoded_object,
                     py::handle source_object) {
  check(dtype, quantisation);
  const Bytes encoded(encoded_object, "encoded", true);
  const Bytes source(source_object, "source", false);
  const size_t count = count_of(source, "source", size_of(dtype));
  expect_size(encoded, "encoded", encoded_bytes(quantisation, count));
  expect_apart(encoded, source, "source", false);
  const py::gil_scoped_release release;
  quantise(dtype, quantisation, encoded.data(), source.data(), count);
}

void dequantise_buffers(Dtype dtype, const Quantisation& quantisation, py::handle target_object,
                        const py::sequence& encoded_objects, py::handle first_object) {
  check(dtype, quantisation);
  const Bytes target(target_object, "target", true);
  const size_t count = count_of(target, "target", size_of(dtype));
  std::optional<Bytes> first;
  if (!first_object.is_none()) {
    first.emplace(first_object, "first", false);
    expect_size(*first, "first", target.size());
    expect_apart(target, *first, "first", true);
  }
  std::vector<Bytes> encoded;
  std::vector<const void*> pointers;
  for (py::handle object : encoded_objects) {
    const std::string role = "source " + std::to_string(encoded.size());
    const Bytes& source = encoded.emplace_back(object, role, false);
    expect_size(source, role, encoded_bytes(quantisation, count));
    expect_apart(target, source, role, false);
    pointers.push_back(source.data());
  }
  if (pointers.empty()) {
    throw Error(Code::invalid_argument, "encoded: expected at least one buffer; got none");
  }
  const py::gil_scoped_release release;
  dequantise(dtype, quantisation, target.data(), first ? first->data() : nullptr, pointers.data(),
             static_cast<int>(pointers.size()), count);
}

void bind_quantise(py::module_& module) {
  module.def("cast", &cast_buffers, py::arg("to"), py::arg("target"), py::arg("source_dtype"),
             py::arg("source"),
             "target[i] = source[i] in another floating dtype, rounded once to nearest even.");
  py::class_<Quantisation>(module, "Quantisation",
                           "Symmetric block quantisation: 8 or 4 bits, a scale per group, in "
                           "float32 or bfloat16.")
      .def(py::init(
               [](int bits, int group, Dtype scale) { return Quantisation{bits, group, scale}; }),
           py::arg("bits") = 8, py::arg("group") = 256, py::arg("scale") = Dtype::float32)
      .def_readonly("bits", &Quantisation::bits)
      .def_readonly("group", &Quantisation::group)
      .def_readonly("scale", &Quantisation::scale)
      .def("codes_offset", &codes_offset, py::arg("count"))
      .def("encoded_bytes", &encoded_bytes, py::arg("count"));
  module.def("quantise", &quantise_buffer, py::arg("dtype"), py::arg("quantisation"),
             py::arg("encoded"), py::arg("source"),
             "Encodes a buffer: scales, then codes. Raises InvalidArgumentError.");
  module.def("dequantise", &dequantise_buffers, py::arg("dtype"), py::arg("quantisation"),
             py::arg("target"), py::arg("encoded"), py::arg("first") = py::none(),
             "target[i] = (first[i] +) the decoded values of the list `encoded`, added in float32 "
             "in that order and rounded once. `first` may be the target.");
}

const Binding quantise_binding(10, bind_quantise);

}  // namespace
}  // namespace hetcomm
