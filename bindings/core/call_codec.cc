#include "comm/call_codec.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>

#include "base/page_size.h"
#include "core/binding.h"
#include "core/bytes.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

void set(Feedback& feedback, const std::string& key, py::handle values_object) {
  const Bytes values(values_object, "values", false);
  const size_t count = count_of(values, "values", sizeof(float));
  // Pages of zeros stay untouched, so that the system gives them no memory.
  char* const target = reinterpret_cast<char*>(feedback.at(key, count)->on_host());
  const auto page = static_cast<size_t>(page_size());
  for (size_t at = 0; at < values.size(); at += page) {
    const size_t bytes = std::min(page, values.size() - at);
    if (std::memcmp(target + at, values.data() + at, bytes) == 0) continue;
    std::memcpy(target + at, values.data() + at, bytes);
  }
}

using Residuals = std::map<std::string, std::shared_ptr<Residual>>;

Residuals residuals(const Feedback& feedback) {
  Residuals all = feedback.residuals();
  for (const auto& [key, residual] : all) residual->on_host();
  return all;
}

size_t bytes(const Feedback& feedback) {
  size_t all = 0;
  for (const auto& [key, residual] : feedback.residuals()) all += residual->count() * sizeof(float);
  return all;
}

void bind_call_codec(py::module_& module) {
  py::class_<Residual, std::shared_ptr<Residual>>(
      module, "Residual", py::buffer_protocol(),
      "A buffer of float32: what lossy codecs have lost of one tensor so far.")
      .def_buffer([](Residual& self) {
        return py::buffer_info(self.values(), static_cast<py::ssize_t>(self.count()));
      });
  py::class_<Feedback, std::shared_ptr<Feedback>>(module, "Feedback",
                                                  "The residuals of tensors by key. Thread-safe.")
      .def(py::init<>())
      .def("residuals", &residuals, py::call_guard<py::gil_scoped_release>(),
           "The residuals by key, in host memory. The next operation with a key may move them to "
           "device memory.")
      .def("bytes", &bytes, "Bytes that the residuals may take.")
      .def("set", &set, py::arg("key"), py::arg("values"),
           "Replaces a residual by float32 values. Raises InvalidArgumentError for another size.")
      .def("clear", &Feedback::clear);
  py::class_<CallCodec>(module, "CallCodec",
                        "The codec of the collectives that a thread starts next.")
      .def(py::init(
               [](const std::string& codec, std::shared_ptr<Feedback> feedback, std::string key) {
                 return CallCodec{codec == "group" ? kCodecOfGroup : codec_setting(codec),
                                  std::move(feedback), std::move(key)};
               }),
           py::arg("codec") = "group", py::arg("feedback") = nullptr, py::arg("key") = "")
      .def_static(
          "swap",
          [](CallCodec next) {
            std::swap(CallCodec::of_thread(), next);
            return next;
          },
          py::arg("next"), "Makes `next` the codec of this thread. Returns the one before.");
}

const Binding call_codec_binding(11, bind_call_codec);

}  // namespace
}  // namespace hetcomm
