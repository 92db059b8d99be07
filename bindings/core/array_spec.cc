#include "core/array_spec.h"

#include <string>

#include "base/timeout.h"
#include "plan/overlap.h"
#include "plan/splits.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

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
      refuse(name(collective),
             "one block of equal size for each of " + std::to_string(size) + " ranks",
             input->describe(), "pad it");
    default:
      return input != nullptr ? input->count() : 0;
  }
}

// `needed`: this rank has such an array.
void check_count(Collective collective, const char* role, const Array* array, bool needed,
                 int64_t expected) {
  if (!needed || (array != nullptr && array->count() == expected)) return;
  refuse(name(collective),
         std::string("an ") + role + " of " + std::to_string(expected) + " elements",
         array == nullptr ? "none" : std::to_string(array->count()) + " in a " + array->describe(),
         "see the shapes in the method's documentation");
}

void split(Spec& spec, const Communicator& communicator, const Array& input, const Array& output,
           const RowSplits& splits) {
  const int size = communicator.size();
  const std::string operation = name(spec.collective);
  const auto sends = split_elements(input.rows(), input.count(), splits.input, size, operation,
                                    "input, a " + input.describe());
  const auto receives = split_elements(output.rows(), output.count(), splits.output, size,
                                       operation, "output, a " + output.describe());
  set_splits(spec, communicator.rank(), sends, receives, operation);
}

Spec spec_of(const Communicator& communicator, Collective collective, const Array* input,
             const Array* output, ReduceOp op, double factor, int root,
             const std::optional<RowSplits>& splits) {
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
    refuse(name(collective), input == nullptr ? "an input" : "an output", "None", "pass an array");
  }
  spec.dtype = first->dtype();
  if (splits) {
    split(spec, communicator, *input, *output, *splits);
  } else {
    spec.count = count_of(collective, input, output, communicator.size());
  }
  for (const Array* array : {input, output}) {
    if (array == nullptr) continue;
    check_place(communicator, collective, *array);
    if (array->dtype() == first->dtype() && array->is_complex() == first->is_complex()) continue;
    refuse(name(collective), "arrays of one dtype", first->describe() + " and " + array->describe(),
           "convert one of them");
  }
  if (has_reduction(collective) && first->is_complex() && combining(op) != ReduceOp::sum) {
    refuse(name(collective), "sum or average of complex numbers", name(op),
           "reduce their parts apart");
  }
  if (input != nullptr && output != nullptr) {
    spec.in_place =
        allows_in_place(collective) && input->count() > 0 && input->data() == output->data();
    if (spec.in_place && collective == Collective::reduce) {
      refuse(name(collective), "an output apart from the input", "the input", "leave `out` away");
    }
  }
  CallCodec::of_thread().apply(spec);
  const int rank = communicator.rank(), size = communicator.size();
  const BufferCounts counts = buffer_counts(spec, rank, size);
  check_count(collective, "input", input, has_input(collective, at_root), counts.input);
  check_count(collective, "output", output, has_output(collective, at_root), counts.output);
  return spec;
}

}  // namespace

SharedArray array_of(py::handle object, const char* role, bool writable, py::handle dlpack_stream) {
  if (object.is_none()) return nullptr;
  return std::make_shared<Array>(object, role, writable, dlpack_stream);
}

void check_place(const Communicator& communicator, Collective collective, const Array& array) {
  const auto& device = communicator.device();
  if (array.count() == 0) return;
  if (device ? device->holds(array.data()) : !array.on_device()) return;
  refuse(name(collective), device ? "an array on " + device->describe() : "an array in host memory",
         array.on_device() ? "one on a device" : "one in host memory",
         "move it there, or make the communicator with that device");
}

ArrayCollective::ArrayCollective(Communicator& communicator, Collective collective,
                                 py::handle input, py::handle output, ReduceOp op, double factor,
                                 int root, py::handle dlpack_stream,
                                 const std::optional<RowSplits>& splits) {
  reporting_refusal(communicator, [&] {
    const bool same = input.ptr() == output.ptr();
    this->input = array_of(input, "input", same, dlpack_stream);
    this->output = same ? this->input : array_of(output, "output", true, dlpack_stream);
    spec = spec_of(communicator, collective, this->input.get(), this->output.get(), op, factor,
                   root, splits);
  });
}

Communicator::CallOptions ArrayCollective::with_residual(Communicator& communicator,
                                                         Communicator::CallOptions options) const {
  reporting_refusal(communicator, [&] {
    options.residual = CallCodec::of_thread().residual(spec, communicator.size());
  });
  return options;
}

void await_arrays(const Communicator& communicator, const Communicator::CallOptions& options,
                  std::initializer_list<const Array*> arrays) {
  if (!communicator.device() || !options.stream) return;
  Device& device = *communicator.device();
  for (const Array* array : arrays) {
    if (array == nullptr || !array->filling_stream()) continue;
    const auto filling = reinterpret_cast<Stream>(*array->filling_stream());
    if (filling == *options.stream) continue;
    const Event filled = device.make_event();
    Status status = device.record(filled, filling);
    if (status) status = device.wait(*options.stream, filled);
    device.destroy_event(filled);
    check(status);
  }
}

Communicator::CallOptions options_of(bool will_wait, std::optional<double> timeout,
                                     std::optional<uintptr_t> stream) {
  Communicator::CallOptions options;
  options.will_wait = will_wait && !stream;  // a stream waits instead of the host
  if (timeout) options.timeout = given_timeout(Seconds(*timeout));
  if (stream) options.stream = reinterpret_cast<Stream>(*stream);
  return options;
}

}  // namespace hetcomm
