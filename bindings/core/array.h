#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "core/buffer.h"

namespace hetcomm {

// An array is not C-contiguous, or not shared by its library. Python may be able to copy the array.
struct NotPacked : Error {
  using Error::Error;
};

template <typename Refusal = Error>
[[noreturn]] void refuse(const std::string& subject, const std::string& expected,
                         const std::string& got, const std::string& remedy) {
  throw Refusal(Code::invalid_argument, subject + ": expected " + expected + ", got " + got +
                                            (remedy.empty() ? "" : "; " + remedy));
}

// The memory of a Python array with the buffer protocol (NumPy, array, bytearray), with DLPack
// (CuPy, torch, JAX, ...) or with the CUDA array interface (Numba, PyCUDA, ...). Keeps the memory
// alive. Made with the interpreter's lock.
class Array {
 public:
  // `role`: the name in messages. `stream`: the stream of a device that reads or writes the array;
  // none for host memory. Throws NotPacked if the array is not C-contiguous. Throws
  // Error(invalid_argument) on an array that is read-only in place of writable, on elements that
  // cannot travel, and on memory that is not there.
  Array(pybind11::handle object, const char* role, bool writable, pybind11::handle stream);
  Array(const Array&) = delete;

  void* data() const { return data_; }
  int64_t count() const { return count_; }  // elements of dtype(); a complex number has two
  int64_t rows() const { return shape_.empty() ? 0 : shape_[0]; }  // along the first axis
  Dtype dtype() const { return dtype_; }
  bool is_complex() const { return complex_; }
  bool on_device() const { return on_device_; }
  // The stream whose work so far fills the array. Only the CUDA array interface tells it: DLPack
  // lets the library of the array order the streams.
  std::optional<uintptr_t> filling_stream() const { return filling_stream_; }
  std::string describe() const;  // "float32 array of shape (2, 3)"

 private:
  bool from_numpy(pybind11::handle object, bool writable);
  bool from_buffer(pybind11::handle object, bool writable);
  void from_view(pybind11::handle object, bool writable);
  bool from_dlpack(pybind11::handle object, bool writable, pybind11::handle stream);
  bool from_cuda_interface(pybind11::handle object, bool writable);
  void read_cuda_interface(pybind11::handle object, const pybind11::dict& interface, bool writable);
  void set_type(char kind, int64_t bytes, const std::string& shown);
  [[noreturn]] void refuse_references(const std::string& elements) const;
  [[noreturn]] void refuse_swapped(const std::string& elements) const;
  [[noreturn]] void refuse_read_only(const std::string& type) const;

  const char* role_;
  void* data_ = nullptr;
  int64_t count_ = 0;
  Dtype dtype_ = Dtype::bytes1;
  bool complex_ = false, on_device_ = false;
  std::optional<uintptr_t> filling_stream_;
  std::span<const int64_t> shape_;  // in memory of the next four
  std::vector<int64_t> extents_;    // of the CUDA array interface
  HeldObject object_;               // an array of NumPy, or with the CUDA array interface
  HeldBuffer buffer_;               // of the buffer protocol
  std::shared_ptr<void> owner_;     // of DLPack
};

}  // namespace hetcomm
