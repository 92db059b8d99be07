#include "codec/codec.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>

#include "core/arguments.h"
#include "core/binding.h"
#include "core/bytes.h"

namespace py = pybind11;

namespace hetcomm {

const Codec& codec_named(const std::string& name, Dtype dtype) {
  const CodecSetting setting = codec_setting(name);
  if (!setting.codec || setting.automatic || setting.in_host) {
    throw Error(Code::invalid_argument, "expected the name of a codec; got \"" + name + "\"");
  }
  if (setting.codec->encodes(dtype)) return *setting.codec;
  throw Error(Code::invalid_argument, name + ": expected a dtype that the codec encodes; got " +
                                          hetcomm::name(dtype) + "; send it as it is");
}

namespace {

size_t capacity(const std::string& name, Dtype dtype, size_t count) {
  return codec_named(name, dtype).capacity(dtype, count);
}

size_t encode(const std::string& name, Dtype dtype, py::handle encoded_object,
              py::handle source_object, py::object residual_object) {
  const Codec& codec = codec_named(name, dtype);
  const Bytes encoded(encoded_object, "encoded", true);
  const Bytes source(source_object, "source", false);
  const size_t count = count_of(source, "source", size_of(dtype));
  expect_size(encoded, "encoded", codec.capacity(dtype, count));
  expect_apart(encoded, source, "source", false);
  std::optional<Bytes> residual;
  if (!residual_object.is_none()) {
    residual.emplace(residual_object, "residual", true);
    expect_size(*residual, "residual", count * sizeof(float));
    expect_apart(encoded, *residual, "residual", false);
  }
  float* const lost = residual ? reinterpret_cast<float*>(residual->data()) : nullptr;
  const py::gil_scoped_release release;
  return codec.encode(dtype, encoded.data(), source.data(), lost, count);
}

void decode(const std::string& name, Dtype dtype, py::handle target_object,
            py::handle encoded_object) {
  const Codec& codec = codec_named(name, dtype);
  const Bytes target(target_object, "target", true);
  const Bytes encoded(encoded_object, "encoded", false);
  const size_t count = count_of(target, "target", size_of(dtype));
  expect_apart(target, encoded, "encoded", false);
  Status status;
  {
    const py::gil_scoped_release release;
    status = codec.decode(dtype, target.data(), encoded.data(), encoded.size(), count);
  }
  check(status);
}

void sum(const std::string& name, Dtype dtype, py::handle target_object, py::object plain_object,
         const std::vector<py::object>& encoded_objects) {
  const Codec& codec = codec_named(name, dtype);
  if (codec.lossless() || encoded_objects.empty()) {
    throw Error(Code::invalid_argument, name + ": expected a lossy codec and encoded data to add");
  }
  const Bytes target(target_object, "target", true);
  const size_t count = count_of(target, "target", size_of(dtype));
  std::optional<Bytes> plain;
  if (!plain_object.is_none()) {
    plain.emplace(plain_object, "plain", false);
    expect_size(*plain, "plain", target.size());
    expect_apart(target, *plain, "plain", true);
  }
  std::vector<std::unique_ptr<Bytes>> encoded;
  std::vector<const void*> data;
  for (const py::object& object : encoded_objects) {
    encoded.push_back(std::make_unique<Bytes>(object, "encoded", false));
    expect_size(*encoded.back(), "encoded", codec.capacity(dtype, count));
    expect_apart(target, *encoded.back(), "encoded", false);
    data.push_back(encoded.back()->data());
  }
  Status status;
  {
    const py::gil_scoped_release release;
    status = codec.sum(dtype, target.data(), plain ? plain->data() : nullptr, data.data(),
                       static_cast<int>(data.size()), count);
  }
  check(status);
}

void bind_codec(py::module_& module) {
  module.def(
      "codecs",
      [] {
        std::vector<std::string> names = {"none", "auto"};
        for (const Codec* codec : codecs()) names.push_back(codec->name());
        return names;
      },
      "The names that HETCOMM_BRIDGE_CODEC takes.");
  module.def(
      "is_lossless", [](const std::string& name) { return !codec_setting(name).lossy(); },
      py::arg("codec"), "Whether every bit comes back. Raises InvalidArgumentError.");
  module.def(
      "codec_error_bound",
      [](const std::string& name) {
        const CodecSetting setting = codec_setting(name);
        return setting.codec ? setting.codec->error_bound() : "none";
      },
      py::arg("codec"), "The most that a finite element changes, for people.");
  module.def("bridge_codec", &bridge_codec,
             "The value of HETCOMM_BRIDGE_CODEC. Raises InvalidArgumentError.");
  module.def("codec_capacity", &capacity, py::arg("codec"), py::arg("dtype"), py::arg("count"),
             "Bytes of memory that codec_encode() needs for `count` elements; of a lossy codec the "
             "bytes of the result.");
  module.def(
      "codec_encode", &encode, py::arg("codec"), py::arg("dtype"), py::arg("encoded"),
      py::arg("source"), py::arg("residual") = py::none(),
      "Encodes a buffer. Returns the bytes of the result. With a float32 residual of as many "
      "elements, encodes source + residual; the residual then has what was lost. Raises "
      "InvalidArgumentError.");
  module.def("codec_decode", &decode, py::arg("codec"), py::arg("dtype"), py::arg("target"),
             py::arg("encoded"),
             "Decodes into a buffer of the same elements. Raises TransportError for bytes that no "
             "encoder has made.");
  module.def("codec_sum", &sum, py::arg("codec"), py::arg("dtype"), py::arg("target"),
             py::arg("plain"), py::arg("encoded"),
             "target = plain + the encoded elements, in order, in float32 and rounded once. plain "
             "may be None, or the target. Lossy codecs alone.");
}

const Binding codec_binding(10, bind_codec);

}  // namespace
}  // namespace hetcomm
