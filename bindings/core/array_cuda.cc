// Arrays with __cuda_array_interface__, version 0 to 3:
// https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html

#include <pybind11/stl.h>

#include <cstring>

#include "core/arguments.h"
#include "core/array.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

constexpr int kNewestVersion = 3;

py::object entry(const py::dict& interface, const char* key) {
  return interface.contains(key) ? py::object(interface[key]) : py::none();
}

bool contiguous(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides,
                int64_t bytes) {
  int64_t step = bytes;
  bool dense = true;
  for (size_t axis = shape.size(); axis-- > 0;) {
    if (shape[axis] == 0) return true;
    dense = dense && (shape[axis] == 1 || strides[axis] == step);
    step *= shape[axis];
  }
  return dense;
}

}  // namespace

// False for an object without the interface.
bool Array::from_cuda_interface(py::handle object, bool writable) {
  const py::object given = py::getattr(object, "__cuda_array_interface__", py::none());
  if (!py::isinstance<py::dict>(given)) return false;
  try {
    read_cuda_interface(object, py::reinterpret_borrow<py::dict>(given), writable);
  } catch (const py::cast_error&) {
    refuse(role_, "a __cuda_array_interface__ with shape, typestr, data and version",
           py::repr(given), "");
  }
  object_.take(object);
  return true;
}

void Array::read_cuda_interface(py::handle object, const py::dict& interface, bool writable) {
  const auto version = entry(interface, "version").cast<int>();
  if (version > kNewestVersion) {
    refuse(role_, "version 3 of the CUDA array interface", std::to_string(version),
           "update hetcomm");
  }
  if (!entry(interface, "mask").is_none()) {
    refuse(role_, "an array of which all elements count", "a masked one", "fill it");
  }
  const auto [address, read_only] = entry(interface, "data").cast<std::pair<uintptr_t, bool>>();
  data_ = pointer(address);
  on_device_ = true;
  extents_ = entry(interface, "shape").cast<std::vector<int64_t>>();
  shape_ = extents_;
  count_ = 1;
  for (const int64_t extent : extents_) count_ *= extent;
  const auto type = entry(interface, "typestr").cast<std::string>();
  const int64_t bytes = type.size() > 2 ? std::atoll(type.c_str() + 2) : 0;
  if (bytes <= 0 || std::strchr("tO", type[1]) != nullptr) {
    refuse(role_, "elements of whole bytes", type, "view it as bytes");
  }
  if (type[0] == '>' && bytes > 1) {
    refuse(role_, "elements in the byte order of the machine", type, "convert it");
  }
  // The interface has no names for types such as bfloat16 of ml_dtypes.
  // ml_dtypes gives some the letter of another type.
  const bool unknown = type[1] == 'V' || (type[1] == 'f' && bytes == 1);
  const bool named = unknown && py::hasattr(object, "dtype");
  const std::string shown = named ? py::str(object.attr("dtype")).cast<std::string>() : type;
  set_type(std::strchr("fiubc", type[1]) != nullptr ? type[1] : 'V', bytes, shown);
  if (const py::object strides = entry(interface, "strides");
      !strides.is_none() && !contiguous(extents_, strides.cast<std::vector<int64_t>>(), bytes)) {
    refuse<NotPacked>(role_, "a C-contiguous array", "a " + describe() + " that is not", "copy it");
  }
  if (writable && read_only) refuse_read_only(py::str(py::type::of(object).attr("__name__")));
  if (const py::object stream = entry(interface, "stream"); !stream.is_none()) {
    filling_stream_ = stream.cast<uintptr_t>();
    if (*filling_stream_ == 0) {
      refuse(role_, "a stream other than 0 in __cuda_array_interface__, which is ambiguous", "0",
             "name the default stream 1, or the thread's own 2");
    }
  }
}

}  // namespace hetcomm
