#include "codec/lossless.h"

#include <pybind11/pybind11.h>

#include <string>

#include "core/binding.h"
#include "core/bytes.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

void expect_encodable(Dtype dtype) {
  if (lossless_encodes(dtype)) return;
  throw Error(Code::invalid_argument,
              std::string("lossless: expected float32, float16 or bfloat16; got ") + name(dtype) +
                  "; send other dtypes as they are");
}

size_t capacity(Dtype dtype, size_t count) {
  expect_encodable(dtype);
  return lossless_capacity(dtype, count);
}

size_t encode(Dtype dtype, py::handle encoded_object, py::handle source_object) {
  expect_encodable(dtype);
  const Bytes encoded(encoded_object, "encoded", true);
  const Bytes source(source_object, "source", false);
  const size_t count = count_of(source, "source", size_of(dtype));
  expect_size(encoded, "encoded", lossless_capacity(dtype, count));
  expect_apart(encoded, source, "source", false);
  const py::gil_scoped_release release;
  return lossless_encode(dtype, encoded.data(), source.data(), count);
}

void decode(Dtype dtype, py::handle target_object, py::handle encoded_object) {
  expect_encodable(dtype);
  const Bytes target(target_object, "target", true);
  const Bytes encoded(encoded_object, "encoded", false);
  const size_t count = count_of(target, "target", size_of(dtype));
  expect_apart(target, encoded, "encoded", false);
  Status status;
  {
    const py::gil_scoped_release release;
    status = lossless_decode(dtype, target.data(), encoded.data(), encoded.size(), count);
  }
  check(status);
}

void bind(py::module_& module) {
  module.def("lossless_capacity", &capacity, py::arg("dtype"), py::arg("count"),
             "Bytes of memory that lossless_encode() needs for `count` elements.");
  module.def(
      "lossless_encode", &encode, py::arg("dtype"), py::arg("encoded"), py::arg("source"),
      "Encodes a buffer of float32, float16 or bfloat16. Returns the bytes of the result, at "
      "most those of the source. Raises InvalidArgumentError.");
  module.def("lossless_decode", &decode, py::arg("dtype"), py::arg("target"), py::arg("encoded"),
             "Decodes into a buffer of the same elements. Raises TransportError for bytes that no "
             "encoder has made.");
}

const Binding binding(10, bind);

}  // namespace
}  // namespace hetcomm
