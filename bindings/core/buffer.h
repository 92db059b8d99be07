#pragma once

#include <pybind11/pybind11.h>

namespace hetcomm {

// Runs `function` with the interpreter's lock, on any thread. Does nothing once the interpreter has
// ended.
template <typename Function>
void with_interpreter(const Function& function) {
  if (Py_IsInitialized() == 0) return;
  const PyGILState_STATE state = PyGILState_Ensure();
  function();
  PyGILState_Release(state);
}

// Keeps a Python object alive. May be destroyed on any thread.
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

// Keeps a Python object's memory by the buffer protocol. May be destroyed on any thread.
class HeldBuffer {
 public:
  HeldBuffer() = default;
  HeldBuffer(const HeldBuffer&) = delete;
  ~HeldBuffer() {
    if (view_.obj != nullptr) with_interpreter([this] { PyBuffer_Release(&view_); });
  }

  // Once, with the interpreter's lock. False, with Python's error set, if the object has no such
  // memory.
  bool take(pybind11::handle object, int flags) {
    return PyObject_GetBuffer(object.ptr(), &view_, flags) == 0;
  }
  const Py_buffer& operator*() const { return view_; }
  const Py_buffer* operator->() const { return &view_; }

 private:
  Py_buffer view_{};
};

}  // namespace hetcomm
