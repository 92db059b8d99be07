#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "base/status.h"

namespace hetcomm {

// The bytes of a Python object with the buffer protocol, held for as long as this lives. Made and
// destroyed with the interpreter's lock.
class Bytes {
 public:
  // `role` is what messages call it. Throws Error(invalid_argument).
  Bytes(pybind11::handle object, const std::string& role, bool writable) {
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0) {
      PyErr_Clear();
      throw Error(Code::invalid_argument,
                  role + ": expected a contiguous " + (writable ? "writable " : "") +
                      "buffer such as a NumPy array; got " +
                      std::string(pybind11::str(pybind11::type::of(object))) +
                      "; pass numpy.ascontiguousarray(...)");
    }
  }
  Bytes(Bytes&& other) noexcept : view_(other.view_) { other.view_.obj = nullptr; }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  ~Bytes() { PyBuffer_Release(&view_); }

  char* data() const { return static_cast<char*>(view_.buf); }
  size_t size() const { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_{};
};

inline bool overlap(const Bytes& a, const Bytes& b) {
  return a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

inline bool partly_overlap(const Bytes& a, const Bytes& b) {
  return a.data() != b.data() && overlap(a, b);
}

}  // namespace hetcomm
