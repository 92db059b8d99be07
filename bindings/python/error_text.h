#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace hetcomm {

// "ValueError: too long": an exception of Python without its traceback, which what() has. For texts
// that go on, and that other ranks get. With the interpreter's lock.
inline std::string text_of(const pybind11::error_already_set& error) {
  return pybind11::str(error.type().attr("__name__")).cast<std::string>() + ": " +
         pybind11::str(error.value()).cast<std::string>();
}

}  // namespace hetcomm
