#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "base/status.h"

namespace hetcomm {

// The bytes of a Python object with the buffer protocol. Keeps the object alive. Made and destroyed
// with the interpreter's lock.
class Bytes {
 public:
  // `role`: the name in messages. Throws Error(invalid_argument).
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

// The elements of `size` bytes in a buffer. Throws Error(invalid_argument) on a remainder.
inline size_t count_of(const Bytes& bytes, const std::string& role, size_t size) {
  if (bytes.size() % size == 0) return bytes.size() / size;
  throw Error(Code::invalid_argument, role + ": expected a multiple of " + std::to_string(size) +
                                          " bytes; got " + std::to_string(bytes.size()));
}

// Throws Error(invalid_argument) on another size.
inline void expect_size(const Bytes& bytes, const std::string& role, size_t expected) {
  if (bytes.size() == expected) return;
  throw Error(Code::invalid_argument, role + ": expected " + std::to_string(expected) +
                                          " bytes; got " + std::to_string(bytes.size()));
}

// Throws Error(invalid_argument) if `source` and the target overlap. `or_equal`: they may be equal.
inline void expect_apart(const Bytes& target, const Bytes& source, const std::string& role,
                         bool or_equal) {
  if (or_equal && target.data() == source.data()) return;
  if (target.data() >= source.data() + source.size()) return;
  if (source.data() >= target.data() + target.size()) return;
  throw Error(Code::invalid_argument, role + ": expected " +
                                          (or_equal ? "the target itself or " : "") +
                                          "memory apart from the target; got an overlap");
}

}  // namespace hetcomm
