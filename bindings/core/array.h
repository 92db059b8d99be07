#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/dtype.h"
#include "base/status.h"
#include "core/buffer.h"

namespace hetcomm {

// Of an array that is not C-contiguous, not writable where that is asked for, or not shared by its
// library. Python may be able to copy it.
struct NotPacked : Error {
  using Error::Error;
};

// The memory of a Python array, held for as long as this lives: of anything with the buffer
// protocol (NumPy, array, bytearray) or with DLPack (CuPy, torch, JAX, ...). Made with the
// interpreter's lock.
class Array {
 public:
  // `role` is what messages call it. `stream`: of a device's array, the stream that shall see its
  // contents; none for host memory. Throws NotPacked unless it is C-contiguous and, where that is
  // asked for, writable, and Error(invalid_argument) unless it is of a known dtype.
  Array(pybind11::handle object, const char* role, bool writable, pybind11::handle stream);
  Array(const Array&) = delete;

  void* data() const { return data_; }
  int64_t count() const { return count_; }  // elements of dtype(); a complex number is two
  int64_t rows() const { return shape_.empty() ? 0 : shape_[0]; }  // along the first axis
  Dtype dtype() const { return dtype_; }
  bool is_complex() const { return complex_; }
  bool on_device() const { return on_device_; }
  std::string describe() const;  // "float32 array of shape (2, 3)"

 private:
  bool from_numpy(pybind11::handle object, bool writable);
  bool from_buffer(pybind11::handle object, bool writable);
  void from_dlpack(pybind11::handle object, bool writable, pybind11::handle stream);
  void set_type(char kind, int64_t bytes, const std::string& shown);

  const char* role_;
  void* data_ = nullptr;
  int64_t count_ = 0;
  Dtype dtype_ = Dtype::bytes1;
  bool complex_ = false, on_device_ = false;
  std::span<const int64_t> shape_;  // within what the array has given
  HeldObject object_;               // who gives the memory back: an array of NumPy's,
  HeldBuffer buffer_;               // or the buffer protocol,
  std::shared_ptr<void> owner_;     // or DLPack
};

}  // namespace hetcomm
