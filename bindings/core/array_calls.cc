// Collectives and messages of Python arrays that go on in the background.

#include <pybind11/stl.h>

#include <optional>

#include "core/array_spec.h"
#include "core/binding.h"
#include "plan/overlap.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

Work start_collective(Communicator& communicator, Collective collective, const py::object& input,
                      const py::object& output, ReduceOp op, double factor, int root,
                      bool will_wait, std::optional<double> timeout,
                      std::optional<uintptr_t> stream, const py::object& dlpack_stream,
                      std::optional<std::pair<std::vector<int64_t>, std::vector<int64_t>>> splits) {
  std::optional<RowSplits> of_rows;
  if (splits) of_rows = {std::move(splits->first), std::move(splits->second)};
  try {
    const ArrayCollective call(communicator, collective, input, output, op, factor, root,
                               dlpack_stream, of_rows);
    Communicator::CallOptions options;
    reporting_refusal(communicator, [&] { options = options_of(will_wait, timeout, stream); });
    const py::gil_scoped_release release;
    await_arrays(communicator, options, {call.input.get(), call.output.get()});
    return keeping(call.submit(communicator, options), call.input, call.output);
  } catch (const NotPacked& error) {  // no copy is possible here
    communicator.report_refusal(error.status());
    throw;
  }
}

Work start_message(Communicator& communicator, Collective direction, const py::object& object,
                   int peer, uint32_t tag, bool will_wait, std::optional<double> timeout,
                   std::optional<uintptr_t> stream, const py::object& dlpack_stream) {
  const bool sends = direction == Collective::send;
  const SharedArray array = array_of(object, sends ? "input" : "output", !sends, dlpack_stream);
  if (!array) {
    throw Error(Code::invalid_argument,
                std::string(name(direction)) + ": expected an array, got None; allocate one");
  }
  check_place(communicator, direction, *array);
  const auto options = options_of(will_wait, timeout, stream);
  const py::gil_scoped_release release;
  await_arrays(communicator, options, {array.get()});
  if (sends) {
    return keeping(
        communicator.send(array->data(), array->dtype(), array->count(), peer, tag, options),
        array);
  }
  if (peer < 0) {
    return keeping(
        communicator.recv_any(array->data(), array->dtype(), array->count(), tag, options), array);
  }
  return keeping(
      communicator.recv(array->data(), array->dtype(), array->count(), peer, tag, options), array);
}

// An array that is not packed is copied, so it shares nothing.
bool share_memory(const py::object& given, const py::object& out) {
  try {
    const Array input(given, "array", false, py::none()), output(out, "out", true, py::none());
    const auto bytes = [](const Array& array) {
      return array.count() * static_cast<int64_t>(size_of(array.dtype()));
    };
    return overlap(input.data(), bytes(input), output.data(), bytes(output));
  } catch (const NotPacked&) {
    return false;
  }
}

void bind_array_calls(py::module_& module) {
  module.def("start_collective", &start_collective, py::arg("communicator"), py::arg("collective"),
             py::arg("input"), py::arg("output"), py::arg("op"), py::arg("factor"), py::arg("root"),
             py::arg("will_wait"), py::arg("timeout"), py::arg("stream"), py::arg("dlpack_stream"),
             py::arg("splits") = py::none(),
             "Starts a collective of arrays; None for an array that this rank does not have. "
             "splits: of an all_to_all, how the rows of the input and of the output are split; an "
             "empty list is even.");
  module.def("start_message", &start_message, py::arg("communicator"), py::arg("direction"),
             py::arg("array"), py::arg("peer"), py::arg("tag"), py::arg("will_wait"),
             py::arg("timeout"), py::arg("stream"), py::arg("dlpack_stream"),
             "Starts a send or a receive. A receive with a negative `peer` is from any rank.");
  module.def("share_memory", &share_memory, py::arg("array"), py::arg("out"),
             "Whether a message that is sent from `array` would be overwritten through `out`.");
}

const Binding array_calls_binding(50, bind_array_calls);

}  // namespace
}  // namespace hetcomm
