// Collectives and messages of Python arrays.

#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "comm/communicator.h"
#include "core/array.h"
#include "core/binding.h"
#include "core/waiting.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

using SharedArray = std::shared_ptr<const Array>;

[[noreturn]] void refuse(Collective collective, const std::string& expected, const std::string& got,
                         const std::string& remedy) {
  throw Error(Code::invalid_argument, std::string(name(collective)) + ": expected " + expected +
                                          ", got " + got + "; " + remedy);
}

// The memory must be what the communicator works on.
void check_place(const Communicator& communicator, Collective collective, const Array& array) {
  const auto& device = communicator.device();
  if (array.count() == 0) return;
  if (device ? device->holds(array.data()) : !array.on_device()) return;
  refuse(collective, device ? "an array on " + device->describe() : "an array in host memory",
         array.on_device() ? "one on a device" : "one in host memory",
         "move it there, or make the communicator with that device");
}

bool has_input(Collective collective, bool at_root) {
  return collective == Collective::scatter ? at_root : collective != Collective::barrier;
}

bool has_output(Collective collective, bool at_root) {
  const bool only_root = collective == Collective::reduce || collective == Collective::gather;
  return only_root ? at_root : collective != Collective::barrier;
}

// Elements of one rank's block, or of the whole where there are no blocks.
int64_t count_of(Collective collective, const Array* input, const Array* output, int size) {
  switch (collective) {
    case Collective::reduce_scatter:
    case Collective::scatter:
      return output->count();
    case Collective::all_to_all:
      if (input->count() % size == 0) return input->count() / size;
      refuse(collective, "one block of equal size for each of " + std::to_string(size) + " ranks",
             input->describe(), "pad it");
    default:
      return input != nullptr ? input->count() : 0;
  }
}

// `needed`: this rank has such an array.
void check_count(Collective collective, const char* role, const Array* array, bool needed,
                 int64_t expected) {
  if (!needed || (array != nullptr && array->count() == expected)) return;
  refuse(collective, std::string("an ") + role + " of " + std::to_string(expected) + " elements",
         array == nullptr ? "none" : std::to_string(array->count()) + " in a " + array->describe(),
         "see the shapes in the method's documentation");
}

void check_apart(Collective collective, const Array& input, const Array& output) {
  const auto* a = static_cast<const char*>(input.data());
  const auto* b = static_cast<const char*>(output.data());
  const auto bytes = static_cast<int64_t>(size_of(input.dtype()));
  if (a == b || a + input.count() * bytes <= b || b + output.count() * bytes <= a) return;
  refuse(collective, "an output that is the input or apart from it", "one that overlaps it in part",
         "copy one of them");
}

Spec spec_of(const Communicator& communicator, Collective collective, const Array* input,
             const Array* output, ReduceOp op, double factor, int root) {
  Spec spec;
  spec.collective = collective;
  spec.op = op;
  spec.factor = factor;
  spec.root = root;
  const Array* first = input != nullptr ? input : output;
  if (first == nullptr && collective == Collective::barrier) return spec;
  const bool at_root = communicator.rank() == root;
  if ((input == nullptr && has_input(collective, at_root)) ||
      (output == nullptr && has_output(collective, at_root))) {
    refuse(collective, input == nullptr ? "an input" : "an output", "None", "pass an array");
  }
  spec.dtype = first->dtype();
  spec.count = count_of(collective, input, output, communicator.size());
  for (const Array* array : {input, output}) {
    if (array == nullptr) continue;
    check_place(communicator, collective, *array);
    if (array->dtype() == first->dtype() && array->is_complex() == first->is_complex()) continue;
    refuse(collective, "arrays of one dtype", first->describe() + " and " + array->describe(),
           "convert one of them");
  }
  if (has_reduction(collective) && first->is_complex() && combining(op) != ReduceOp::sum) {
    refuse(collective, "sum or average of complex numbers", name(op), "reduce their parts apart");
  }
  if (input != nullptr && output != nullptr) {
    check_apart(collective, *input, *output);
    spec.in_place = spec.count > 0 && input->data() == output->data();
    if (spec.in_place && collective == Collective::reduce) {
      refuse(collective, "an output apart from the input", "the input", "leave `out` away");
    }
  }
  const int rank = communicator.rank(), size = communicator.size();
  check_count(collective, "input", input, has_input(collective, at_root),
              input_count(spec, rank, size));
  check_count(collective, "output", output, has_output(collective, at_root),
              output_count(spec, rank, size));
  return spec;
}

Communicator::CallOptions options_of(bool will_wait, std::optional<double> timeout,
                                     const std::optional<uintptr_t>& stream) {
  Communicator::CallOptions options;
  options.will_wait = will_wait && !stream;  // else the stream waits, and the host goes on
  if (timeout) options.timeout = timeout_of(Seconds(*timeout));
  if (stream) options.stream = reinterpret_cast<Stream>(*stream);
  return options;
}

SharedArray array_of(const py::object& object, const char* role, bool writable,
                     const py::object& dlpack_stream) {
  if (object.is_none()) return nullptr;
  return std::make_shared<const Array>(object, role, writable, dlpack_stream);
}

// Lets the arrays go when the operation is done, whether or not anybody keeps the work.
Work holding(Work work, const SharedArray& a, const SharedArray& b) {
  for (const SharedArray& array : {a, b}) {
    if (array) work.hold(std::const_pointer_cast<Array>(array));
  }
  return work;
}

// A collective that can be submitted.
struct Prepared {
  SharedArray input, output;
  Spec spec;

  Work submit(Communicator& communicator, const Communicator::CallOptions& options) const {
    return communicator.submit(spec, input ? input->data() : nullptr,
                               output ? output->data() : nullptr, options);
  }
};

Prepared prepare(Communicator& communicator, Collective collective, const py::object& input,
                 const py::object& output, ReduceOp op, double factor, int root,
                 const py::object& dlpack_stream) {
  Prepared call;
  try {
    const bool same = input.ptr() == output.ptr();
    call.input = array_of(input, "input", same, dlpack_stream);
    call.output = same ? call.input : array_of(output, "output", true, dlpack_stream);
    call.spec =
        spec_of(communicator, collective, call.input.get(), call.output.get(), op, factor, root);
  } catch (const Error& error) {
    communicator.refused(error.status());  // the others may wait for it
    throw;
  } catch (const py::error_already_set& error) {
    communicator.refused(Status(Code::invalid_argument, error.what(), communicator.rank()));
    throw;
  }
  return call;
}

Work start_collective(Communicator& communicator, Collective collective, const py::object& input,
                      const py::object& output, ReduceOp op, double factor, int root,
                      std::optional<double> timeout, std::optional<uintptr_t> stream,
                      const py::object& dlpack_stream) {
  const Prepared call =
      prepare(communicator, collective, input, output, op, factor, root, dlpack_stream);
  const py::gil_scoped_release release;
  return holding(call.submit(communicator, options_of(false, timeout, stream)), call.input,
                 call.output);
}

void run_collective(Communicator& communicator, Collective collective, const py::object& input,
                    const py::object& output, ReduceOp op, double factor, int root,
                    std::optional<double> timeout) {
  const Prepared call =
      prepare(communicator, collective, input, output, op, factor, root, py::none());
  std::optional<Work> work;
  {
    const py::gil_scoped_release release;
    work = call.submit(communicator, options_of(true, timeout, std::nullopt));
    if (!work->done_within(kSignalInterval) || !work->status().ok()) {
      holding(*work, call.input, call.output);  // which may outlast this call
    }
  }
  wait_released(*work, std::nullopt);
}

Work start_message(Communicator& communicator, Collective direction, const py::object& object,
                   int peer, uint32_t tag, bool will_wait, std::optional<double> timeout,
                   std::optional<uintptr_t> stream, const py::object& dlpack_stream) {
  const bool sends = direction == Collective::send;
  const SharedArray array = array_of(object, sends ? "input" : "output", !sends, dlpack_stream);
  if (!array) refuse(direction, "an array", "None", "allocate what is to be received");
  check_place(communicator, direction, *array);
  const auto options = options_of(will_wait, timeout, stream);
  const py::gil_scoped_release release;
  if (sends) {
    return holding(
        communicator.send(array->data(), array->dtype(), array->count(), peer, tag, options), array,
        nullptr);
  }
  if (peer < 0) {
    return holding(
        communicator.recv_any(array->data(), array->dtype(), array->count(), tag, options), array,
        nullptr);
  }
  return holding(
      communicator.recv(array->data(), array->dtype(), array->count(), peer, tag, options), array,
      nullptr);
}

void bind(py::module_& module) {
  module.def("start_collective", &start_collective, py::arg("communicator"), py::arg("collective"),
             py::arg("input"), py::arg("output"), py::arg("op"), py::arg("factor"), py::arg("root"),
             py::arg("timeout"), py::arg("stream"), py::arg("dlpack_stream"),
             "Starts a collective of arrays, of which a rank's may be None where it has none.");
  module.def("run_collective", &run_collective, py::arg("communicator"), py::arg("collective"),
             py::arg("input"), py::arg("output"), py::arg("op"), py::arg("factor"), py::arg("root"),
             py::arg("timeout"), "A collective of arrays in host memory, from start to end.");
  module.def("start_message", &start_message, py::arg("communicator"), py::arg("direction"),
             py::arg("array"), py::arg("peer"), py::arg("tag"), py::arg("will_wait"),
             py::arg("timeout"), py::arg("stream"), py::arg("dlpack_stream"),
             "Starts a send, or a receive; from whoever sends first if `peer` is negative.");
}

const Binding binding(50, bind);

}  // namespace
}  // namespace hetcomm
