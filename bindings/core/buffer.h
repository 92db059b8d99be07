#pragma once

#include <pybind11/pybind11.h>

namespace hetcomm {

// Runs `function` with the interpreter's lock, on whatever thread; not once the interpreter is
// gone.
template <typename Function>
void with_interpreter(const Function& function) {
  if (Py_IsInitialized() == 0) return;
  const PyGILState_STATE state = PyGILState_Ensure();
  function();
  PyGILState_Release(state);
}

// A Python object, let go when this ends, on whatever thread.
class HeldObject {
 public:
  HeldObject() = default;
  HeldObject(const HeldObject&) = delete;
  ~HeldObject() {
    if (object_ != nullptr) with_interpreter([this] { Py_DECREF(object_); });
  }
  void take(pybind11::handle object) { object_ = Py_NewRef(object.ptr()); }  // once

 private:
  PyObject* object_ = nullptr;
};

// A Python object's memory by the buffer protocol, given back when this ends, on whatever thread.
class HeldBuffer {
 public:
  HeldBuffer() = default;
  HeldBuffer(const HeldBuffer&) = delete;
  ~HeldBuffer() {
    if (view_.obj != nullptr) with_interpreter([this] { PyBuffer_Release(&view_); });
  }

  // Once, with the interpreter's lock. False, with Python's error set, if the object has none such.
  bool take(pybind11::handle object, int flags) {
    return PyObject_GetBuffer(object.ptr(), &view_, flags) == 0;
  }
  const Py_buffer& operator*() const { return view_; }
  const Py_buffer* operator->() const { return &view_; }

 private:
  Py_buffer view_{};
};

}  // namespace hetcomm
