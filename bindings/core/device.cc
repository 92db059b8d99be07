#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "base/status.h"
#include "core/binding.h"
#include "device/reduce.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

// The bytes of a Python object, held for as long as this lives.
class Bytes {
 public:
  Bytes(py::handle object, const std::string& role, bool writable) {
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0) {
      PyErr_Clear();
      throw Error(Code::invalid_argument, role + ": expected a contiguous " +
                                              (writable ? "writable " : "") +
                                              "buffer such as a NumPy array; got " +
                                              std::string(py::str(py::type::of(object))) +
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

bool partly_overlap(const Bytes& a, const Bytes& b) {
  return a.data() != b.data() && a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

void reduce_buffers(Dtype dtype, ReduceOp op, py::handle target_object,
                    const py::sequence& source_objects) {
  if (!reducible(dtype, op)) {
    throw Error(Code::invalid_argument,
                std::string("expected a reducible dtype and operation; got ") + name(op) + " of " +
                    name(dtype));
  }
  if (source_objects.size() == 0) {
    throw Error(Code::invalid_argument, "sources: expected at least one buffer; got none");
  }
  const Bytes target(target_object, "target", true);
  if (target.size() % size_of(dtype) != 0) {
    throw Error(Code::invalid_argument, "target: expected a multiple of " +
                                            std::to_string(size_of(dtype)) + " bytes; got " +
                                            std::to_string(target.size()));
  }
  std::vector<Bytes> sources;
  std::vector<const void*> pointers;
  for (py::handle object : source_objects) {
    const std::string role = "source " + std::to_string(sources.size());
    const Bytes& source = sources.emplace_back(object, role, false);
    if (source.size() != target.size()) {
      throw Error(Code::invalid_argument, role + ": expected the target's " +
                                              std::to_string(target.size()) + " bytes; got " +
                                              std::to_string(source.size()));
    }
    if (partly_overlap(target, source)) {
      throw Error(
          Code::invalid_argument,
          role + ": expected the target itself or memory apart from it; got a partial overlap");
    }
    pointers.push_back(source.data());
  }
  const py::gil_scoped_release release;
  reduce(dtype, op, target.data(), pointers.data(), static_cast<int>(pointers.size()),
         target.size() / size_of(dtype));
}

void bind(py::module_& module) {
  module.def("reduce", &reduce_buffers, py::arg("dtype"), py::arg("op"), py::arg("target"),
             py::arg("sources"),
             "target[i] = sources[0][i] op sources[1][i] op ..., in that order.\n\n"
             "Contiguous buffers of equal length in bytes, read as `dtype` whatever their own type "
             "(so bfloat16 may come as uint16). The target may be one of the sources. Raises "
             "InvalidArgumentError.");
  module.def("instruction_set", &instruction_set,
             "What reduce() uses: \"baseline\", \"avx2\" or \"avx512\". HETCOMM_ISA lowers it; "
             "raises InvalidArgumentError where the processor lacks that one.");
}

const Binding binding(10, bind);

}  // namespace
}  // namespace hetcomm
