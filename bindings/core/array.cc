#include "core/array.h"

#include <pybind11/numpy.h>

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "core/dlpack.h"
#include "device/vendor.h"
#include "python/error_text.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

std::string type_name(py::handle object) { return py::str(py::type::of(object).attr("__name__")); }

// NumPy's letters: f, i, u, b(oolean), c(omplex), V (bytes of no known meaning).
char kind_of(const char* format, int64_t bytes) {
  if (format[0] == 'Z') return 'c';
  if (format[0] == '\0' || format[1] != '\0') return 'V';
  if (std::strchr("efd", *format) != nullptr) return 'f';
  if (std::strchr("bhilqn", *format) != nullptr) return 'i';
  if (std::strchr("BHILQN", *format) != nullptr) return 'u';
  return *format == '?' && bytes == 1 ? 'b' : 'V';
}

// Null for elements of DLPack without a dtype here.
const DtypeRow* row_of(const dlpack::ElementType& type) {
  const auto means = [&](const DtypeRow& row) {
    return row.dlpack == type.code && row.bytes * 8 == type.bits;
  };
  const auto* found = std::find_if(std::begin(kDtypeRows), std::end(kDtypeRows), means);
  return found == std::end(kDtypeRows) ? nullptr : found;
}

// Whether elements of this format hold addresses, which mean nothing to another process.
bool holds_references(const std::string& format) {
  bool name = false;  // of a field, between colons
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] == ':') name = !name;
    if (name) continue;
    if (std::strchr("OP&Xz", format[i]) != nullptr) return true;
    if (format[i] == 'Z' && std::strchr("fdg", *(format.c_str() + i + 1)) == nullptr) return true;
    if (format[i] == 'Z' && i + 1 == format.size()) return true;
  }
  return false;
}

bool has_objects(const py::object& dtype) {
  return py::getattr(dtype, "hasobject", py::bool_(false)).cast<bool>();
}

bool contiguous(const dlpack::Tensor& tensor) {
  if (tensor.strides == nullptr) return true;
  int64_t step = 1;
  bool dense = true;
  for (int i = tensor.dimensions - 1; i >= 0; --i) {
    if (tensor.shape[i] == 0) return true;
    dense = dense && (tensor.shape[i] == 1 || tensor.strides[i] == step);
    step *= tensor.shape[i];
  }
  return dense;
}

// A tensor of torch may outlive its storage, which FSDP for instance frees, and wrappers of other
// tensors have none. torch exports both.
bool has_memory(py::handle object, bool of_torch, const dlpack::Tensor& tensor, int64_t needed) {
  if (needed == 0) return true;
  if (tensor.data == nullptr || !of_torch) return tensor.data != nullptr;
  const auto bytes = object.attr("untyped_storage")().attr("nbytes")().cast<int64_t>();
  const auto begin = object.attr("storage_offset")().cast<int64_t>();
  return begin * tensor.type.bits / 8 + needed <= bytes;
}

template <typename Managed>
std::shared_ptr<void> owner_of(Managed* managed) {
  return std::shared_ptr<void>(managed, [managed](void*) {
    with_interpreter([managed] {
      if (managed->deleter != nullptr) managed->deleter(managed);
    });
  });
}

py::object to_dlpack(py::handle object, py::handle stream) {
  const py::object method = object.attr("__dlpack__");
  const auto keywords = [&] {
    py::dict made;
    if (!stream.is_none()) made["stream"] = stream;
    return made;
  };
  try {
    py::dict newest = keywords();
    newest["max_version"] = py::make_tuple(1, 0);
    return method(**newest);
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;  // libraries before DLPack 1.0 raise TypeError
  }
  return method(**keywords());
}

// Arrays of CuPy 14 have the buffer protocol, too, which serves memory that the host can read. The
// buffer protocol knows no streams, so such arrays go by DLPack.
bool lies_on_device(py::handle object) {
  if (!py::hasattr(object, "__dlpack_device__")) return false;
  try {
    return object.attr("__dlpack_device__")().cast<std::pair<int32_t, int32_t>>().first !=
           dlpack::kCpu;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

Array::Array(py::handle object, const char* role, bool writable, py::handle stream) : role_(role) {
  if (from_numpy(object, writable)) return;
  if (PyObject_CheckBuffer(object.ptr()) != 0 && !lies_on_device(object)) {
    const bool of_python = PyType_HasFeature(Py_TYPE(object.ptr()), Py_TPFLAGS_HEAPTYPE) != 0;
    if (of_python && py::hasattr(object, "mask") && py::hasattr(object, "filled")) {
      refuse(role, "an array of which all elements count", "a " + type_name(object),
             "pass its filled() or its data");
    }
    if (!from_buffer(object, writable)) from_view(object, writable);
    return;
  }
  try {
    if (from_dlpack(object, writable, stream)) return;
  } catch (py::error_already_set& error) {
    // Libraries refuse element types unknown to DLPack. The other interface may know the type.
    if (from_cuda_interface(object, writable)) return;
    refuse<NotPacked>(role, "an array that can be shared by DLPack",
                      "a " + type_name(object) + " that cannot: " + text_of(error),
                      "pass a plain array or a dense tensor");
  }
  if (from_cuda_interface(object, writable)) return;
  refuse(role,
         "an array with the buffer protocol, DLPack or the CUDA array interface (NumPy, CuPy, "
         "torch, Numba, ...)",
         "a " + type_name(object), "make an array of it");
}

std::string Array::describe() const {
  std::string text = std::string(complex_ ? "complex " : "") + name(dtype_) + " array of shape (";
  for (size_t i = 0; i < shape_.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape_[i]);
  }
  return text + (shape_.size() == 1 ? ",)" : ")");
}

// The usual arrays: their fields are read faster than the buffer protocol describes them. False for
// any other object, and for an unusable array.
bool Array::from_numpy(py::handle object, bool writable) {
  static const PyTypeObject* ndarray = nullptr;
  if (Py_TYPE(object.ptr()) != ndarray) {
    if (std::strcmp(Py_TYPE(object.ptr())->tp_name, "numpy.ndarray") != 0) return false;
    ndarray = Py_TYPE(object.ptr());
  }
  using Api = py::detail::npy_api;
  const auto* array = py::detail::array_proxy(object.ptr());
  const int needed = Api::NPY_ARRAY_C_CONTIGUOUS_ | (writable ? Api::NPY_ARRAY_WRITEABLE_ : 0);
  const auto type = py::reinterpret_borrow<py::dtype>(array->descr);
  const char kind = type.kind(), order = type.byteorder();
  const auto bytes = static_cast<int64_t>(type.itemsize());
  constexpr int kFirstOfUser = 256;  // NPY_USERDEF; ml_dtypes takes letters of other types
  if (type.num() >= kFirstOfUser) return false;
  if ((array->flags & needed) != needed || (order != '=' && order != '|')) return false;
  if (std::strchr("fiubc", kind) == nullptr || bytes > (kind == 'c' ? 16 : 8)) return false;
  data_ = array->data;
  static_assert(sizeof(ssize_t) == sizeof(int64_t));
  shape_ = {reinterpret_cast<const int64_t*>(array->dimensions), static_cast<size_t>(array->nd)};
  count_ = 1;
  for (const int64_t extent : shape_) count_ *= extent;
  set_type(kind, bytes, "");
  object_.take(object);
  return true;
}

// False if the buffer protocol does not know the element type.
bool Array::from_buffer(py::handle object, bool writable) {
  if (!buffer_.take(object, PyBUF_FULL_RO)) {
    PyErr_Clear();
    return false;
  }
  const Py_buffer& view = *buffer_;
  data_ = view.buf;
  count_ = view.itemsize > 0 ? view.len / view.itemsize : 0;
  static_assert(sizeof(Py_ssize_t) == sizeof(int64_t));
  shape_ = {reinterpret_cast<const int64_t*>(view.shape), static_cast<size_t>(view.ndim)};
  const std::string format = view.format == nullptr ? "B" : view.format;
  const auto bytes = static_cast<int64_t>(view.itemsize);
  const bool swapped = (format[0] == '>' || format[0] == '!') && bytes > 1;
  if (swapped) refuse_swapped(format);
  const std::string plain =
      format.substr(std::min(format.find_first_not_of("@=<>!|"), format.size()));
  if (holds_references(plain)) refuse_references("Python objects or addresses");
  if (plain == "g" || plain == "Zg") {
    refuse(role_, "elements of one layout on every machine", "long double", "convert it");
  }
  set_type(kind_of(plain.c_str(), bytes), bytes, format);
  if (writable && view.readonly != 0) refuse_read_only(type_name(object));
  if (PyBuffer_IsContiguous(&view, 'C') == 0) {
    refuse<NotPacked>(role_, "a C-contiguous array", "a " + type_name(object) + " that is not",
                      "copy it");
  }
  return true;
}

// Element types that the buffer protocol does not know, such as bfloat16 of ml_dtypes, as bytes.
void Array::from_view(py::handle object, bool writable) {
  const py::object dtype = py::getattr(object, "dtype", py::none());
  const std::string shown = dtype.is_none() ? "an unknown type" : py::str(dtype);
  if (has_objects(dtype)) refuse_references(shown);
  if (!py::getattr(dtype, "isnative", py::bool_(true)).cast<bool>()) refuse_swapped(shown);
  if (!dtype.is_none() && py::hasattr(object, "view")) {
    const auto bytes = dtype.attr("itemsize").cast<int64_t>();
    try {
      if (from_buffer(object.attr("view")("V" + std::to_string(bytes)), writable)) {
        set_type('V', bytes, shown);
        return;
      }
    } catch (const py::error_already_set&) {  // the elements are no plain bytes
    }
  }
  refuse(role_, "an array of plain elements", "a " + type_name(object) + " of " + shown,
         "convert it");
}

void Array::refuse_references(const std::string& elements) const {
  refuse(role_, "an array of numbers", "one of " + elements,
         "call a method for objects, such as all_gather_object(), or pickle them into bytes");
}

void Array::refuse_swapped(const std::string& elements) const {
  refuse(role_, "elements in the byte order of the machine", elements, "convert it");
}

void Array::refuse_read_only(const std::string& type) const {
  refuse(role_, "a writable array", "a read-only " + type, "pass a copy");
}

bool Array::from_dlpack(py::handle object, bool writable, py::handle stream) {
  if (!py::hasattr(object, "__dlpack__")) return false;
  const py::object requires_grad = py::getattr(object, "requires_grad", py::none());
  const bool of_torch = !requires_grad.is_none();
  // As torch's own collectives, calls read and write tensors that require grad below autograd.
  const py::object shared = requires_grad.ptr() == Py_True
                                ? object.attr("detach")()
                                : py::reinterpret_borrow<py::object>(object);
  const py::object made = to_dlpack(shared, stream);
  PyObject* capsule = made.ptr();
  const dlpack::Tensor* tensor = nullptr;
  uint64_t flags = 0;
  if (PyCapsule_IsValid(capsule, "dltensor_versioned") != 0) {
    auto* owner =
        static_cast<dlpack::Versioned*>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    PyCapsule_SetName(capsule, "used_dltensor_versioned");
    owner_ = owner_of(owner);
    if (owner->major != 1) {
      refuse(role_, "DLPack 1", std::to_string(owner->major), "update hetcomm");
    }
    tensor = &owner->tensor;
    flags = owner->flags;
  } else if (PyCapsule_IsValid(capsule, "dltensor") != 0) {
    auto* owner = static_cast<dlpack::Unversioned*>(PyCapsule_GetPointer(capsule, "dltensor"));
    PyCapsule_SetName(capsule, "used_dltensor");
    owner_ = owner_of(owner);
    tensor = &owner->tensor;
  } else {
    refuse(role_, "a capsule of DLPack", type_name(made), "");
  }
  shape_ = {tensor->shape, static_cast<size_t>(tensor->dimensions)};
  count_ = 1;
  for (const int64_t extent : shape_) count_ *= extent;
  data_ = static_cast<char*>(tensor->data) + tensor->byte_offset;
  const int32_t where = tensor->device.type;
  on_device_ = where != dlpack::kCpu &&
               std::none_of(vendors().begin(), vendors().end(),
                            [&](const Vendor& vendor) { return vendor.dlpack_host == where; });
  const DtypeRow* row = row_of(tensor->type);
  const std::string shown = row != nullptr ? row->numpy
                                           : std::to_string(tensor->type.bits) +
                                                 "-bit elements of DLPack's type " +
                                                 std::to_string(tensor->type.code);
  if (tensor->type.bits % 8 != 0 || tensor->type.lanes != 1) {
    refuse(role_, "elements of whole bytes", shown, "view it as bytes");
  }
  char kind = row != nullptr ? row->numpy[0] : 'V';
  if (tensor->type.code == dlpack::kComplex) kind = 'c';
  set_type(kind, tensor->type.bits / 8, shown);
  if (!contiguous(*tensor))
    refuse<NotPacked>(role_, "a C-contiguous array", "a " + describe() + " that is not", "copy it");
  if (!has_memory(object, of_torch, *tensor, count_ * static_cast<int64_t>(size_of(dtype_)))) {
    refuse(role_, "an array with memory", "a " + type_name(object) + " without, or with too little",
           "see whether its storage was freed");
  }
  if (!writable) return true;
  if (flags & dlpack::kReadOnly) refuse_read_only(type_name(object));
  if (flags & dlpack::kCopied) {
    refuse(role_, "an array that shares its memory", "a copy of it", "copy the array itself first");
  }
  return true;
}

// `shown`: the name of the type, which tells types of equal kind and size apart.
void Array::set_type(char kind, int64_t bytes, const std::string& shown) {
  if (kind == 'c' && (bytes == 8 || bytes == 16)) {
    complex_ = true;
    count_ *= 2;
    dtype_ = bytes == 8 ? Dtype::float32 : Dtype::float64;
    return;
  }
  const DtypeRow* moved = nullptr;
  for (const DtypeRow& row : kDtypeRows) {
    if (row.kind == DtypeClass::moved && static_cast<int64_t>(row.bytes) == bytes) moved = &row;
    const bool plain =
        row.numpy[0] == kind && static_cast<int64_t>(row.bytes) == bytes && row.numpy[1] <= '9';
    if (row.kind == DtypeClass::moved || !(plain || shown == row.numpy)) continue;
    dtype_ = row.dtype;
    return;
  }
  if (moved != nullptr) {
    dtype_ = moved->dtype;
    return;
  }
  refuse(role_, "elements of 1, 2, 4, 8 or 16 bytes", std::to_string(bytes) + ", of type " + shown,
         "view it as bytes");
}

}  // namespace hetcomm
