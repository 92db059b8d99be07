#include "torch/backend.h"

#include <pybind11/pybind11.h>

#include "torch/options.h"
#include "torch/store.h"
#include "torch/tensors.h"

namespace hetcomm {
namespace {

ReduceOp reduce_op(const c10d::ReduceOp& op, const char* operation) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return ReduceOp::sum;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::product;
    case c10d::ReduceOp::MIN:
      return ReduceOp::min;
    case c10d::ReduceOp::MAX:
      return ReduceOp::max;
    case c10d::ReduceOp::BAND:
      return ReduceOp::band;
    case c10d::ReduceOp::BOR:
      return ReduceOp::bor;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::bxor;
    default:
      break;
  }
  throw Error(Code::invalid_argument,
              std::string(operation) +
                  ": expected SUM, PRODUCT, MIN, MAX, BAND, BOR or BXOR, got " +
                  (op.op_ == c10d::ReduceOp::AVG ? "AVG; use SUM and divide by the group's size"
                                                 : "PREMUL_SUM; multiply first and use SUM"));
}

void check_root(int64_t root, int size, const char* operation) {
  if (root >= 0 && root < size) return;
  throw Error(Code::invalid_argument, std::string(operation) + ": expected a root from 0 to " +
                                          std::to_string(size - 1) + ", got " +
                                          std::to_string(root));
}

}  // namespace

TorchBackend::TorchBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                           std::chrono::nanoseconds timeout, const std::string& name)
    : c10d::Backend(rank, size) {
  TorchStore torch_store(store);
  Communicator::Options options;
  options.rank = rank;
  options.size = size;
  options.name = name;
  options.timeout = timeout;
  communicator_ = std::make_unique<Communicator>(torch_store, std::move(options));
}

// Python may drop the last reference with the interpreter's lock held, which the progress thread
// may need to complete a future.
TorchBackend::~TorchBackend() {
  if (Py_IsInitialized() && PyGILState_Check()) {
    pybind11::gil_scoped_release release;
    communicator_.reset();
  }
}

TorchBackend::WorkPointer TorchBackend::start(Call call) {
  Communicator::CallOptions options{.will_wait = call.will_wait};
  if (call.timeout != c10d::kUnsetTimeout) options.timeout = call.timeout;
  hetcomm::Work work = communicator_->submit(call.spec, call.input, call.output, options);
  return c10::make_intrusive<TorchWork>(std::move(work), call.type, rank_, ++sequence_,
                                        std::move(call.keep), std::move(call.outputs),
                                        std::move(call.finish));
}

TorchBackend::WorkPointer TorchBackend::allreduce(Tensors& tensors,
                                                  const c10d::AllreduceOptions& options) {
  return with_python_errors([&] {
    const at::Tensor& tensor = only(tensors, "all_reduce");
    Call call{.type = c10d::OpType::ALLREDUCE, .timeout = options.timeout};
    call.spec.collective = Collective::all_reduce;
    call.spec.dtype = dtype_of(tensor);
    call.spec.op = reduce_op(options.reduceOp, "all_reduce");
    call.spec.count = tensor.numel();
    call.spec.in_place = true;
    call.input = call.output = tensor.data_ptr();
    call.will_wait = waits(options);
    call.keep = call.outputs = tensors;
    return start(std::move(call));
  });
}

TorchBackend::WorkPointer TorchBackend::broadcast(Tensors& tensors,
                                                  const c10d::BroadcastOptions& options) {
  return with_python_errors([&] {
    const at::Tensor& tensor = only(tensors, "broadcast");
    check_root(options.rootRank, size_, "broadcast");
    Call call{.type = c10d::OpType::BROADCAST, .timeout = options.timeout};
    call.spec.collective = Collective::broadcast;
    call.spec.dtype = dtype_of(tensor);
    call.spec.root = static_cast<int>(options.rootRank);
    call.spec.count = tensor.numel();
    call.spec.in_place = true;
    call.input = call.output = tensor.data_ptr();
    call.will_wait = waits(options);
    call.keep = call.outputs = tensors;
    return start(std::move(call));
  });
}

TorchBackend::WorkPointer TorchBackend::reduce(Tensors& tensors,
                                               const c10d::ReduceOptions& options) {
  return with_python_errors([&] {
    const at::Tensor& tensor = only(tensors, "reduce");
    check_root(options.rootRank, size_, "reduce");
    Call call{.type = c10d::OpType::REDUCE, .timeout = options.timeout};
    call.spec.collective = Collective::reduce;
    call.spec.dtype = dtype_of(tensor);
    call.spec.op = reduce_op(options.reduceOp, "reduce");
    call.spec.root = static_cast<int>(options.rootRank);
    call.spec.count = tensor.numel();
    call.spec.in_place = true;
    call.input = call.output = tensor.data_ptr();
    call.will_wait = waits(options);
    call.keep = call.outputs = tensors;
    return start(std::move(call));
  });
}

TorchBackend::WorkPointer TorchBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                  const c10d::AllgatherOptions& options) {
  return with_python_errors([&] {
    const at::Tensor& input = only(inputs, "all_gather");
    if (outputs.size() != 1) {
      throw Error(Code::invalid_argument, "all_gather: expected one list of outputs, got " +
                                              std::to_string(outputs.size()));
    }
    check_list(outputs[0], input, size_, "all_gather");
    Flat flat = flatten(outputs[0]);
    Call call{.type = c10d::OpType::ALLGATHER, .timeout = options.timeout};
    call.spec.collective = Collective::all_gather;
    call.spec.dtype = dtype_of(input);
    call.spec.count = input.numel();
    call.input = input.data_ptr();
    call.output = flat.tensor.data_ptr();
    call.will_wait = waits(options);
    call.keep = {input, flat.tensor};
    call.outputs = outputs[0];
    call.finish = [flat, list = outputs[0]]() mutable { copy_out(flat, list); };
    return start(std::move(call));
  });
}

TorchBackend::WorkPointer TorchBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                        const c10d::AllgatherOptions& options) {
  return with_python_errors([&] {
    check_tensor(input, "all_gather_into_tensor");
    check_tensor(output, "all_gather_into_tensor");
    check_same_dtype(input, output, "all_gather_into_tensor");
    check_size(output, input.numel() * size_, "all_gather_into_tensor: output");
    Call call{.type = c10d::OpType::_ALLGATHER_BASE, .timeout = options.timeout};
    call.spec.collective = Collective::all_gather;
    call.spec.dtype = dtype_of(input);
    call.spec.count = input.numel();
    call.input = input.data_ptr();
    call.output = output.data_ptr();
    call.will_wait = waits(options);
    call.keep = {input, output};
    call.outputs = {output};
    return start(std::move(call));
  });
}

TorchBackend::WorkPointer TorchBackend::reduce_scatter(Tensors& outputs,
                                                       std::vector<Tensors>& inputs,
                                                       const c10d::ReduceScatterOptions& options) {
  return with_python_errors([&] {
    const at::Tensor& output = only(outputs, "reduce_scatter");
    if (inputs.size() != 1) {
      throw Error(Code::invalid_argument, "reduce_scatter: expected one list of inputs, got " +
                                              std::to_string(inputs.size()));
    }
    check_list(inputs[0], output, size_, "reduce_scatter");
    Flat flat = flatten(inputs[0]);
    copy_in(flat, inputs[0]);
    Call call{.type = c10d::OpType::REDUCE_SCATTER, .timeout = options.timeout};
    call.spec.collective = Collective::reduce_scatter;
    call.spec.dtype = dtype_of(output);
    call.spec.op = reduce_op(options.reduceOp, "reduce_scatter");
    call.spec.count = output.numel();
    call.input = flat.tensor.data_ptr();
    call.output = output.data_ptr();
    call.will_wait = waits(options);
    call.keep = {output, flat.tensor};
    call.keep.insert(call.keep.end(), inputs[0].begin(), inputs[0].end());
    call.outputs = {output};
    return start(std::move(call));
  });
}

TorchBackend::WorkPointer TorchBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  return with_python_errors([&] {
    check_tensor(input, "reduce_scatter_tensor");
    check_tensor(output, "reduce_scatter_tensor");
    check_same_dtype(input, output, "reduce_scatter_tensor");
    check_size(input, output.numel() * size_, "reduce_scatter_tensor: input");
    Call call{.type = c10d::OpType::_REDUCE_SCATTER_BASE, .timeout = options.timeout};
    call.spec.collective = Collective::reduce_scatter;
    call.spec.dtype = dtype_of(output);
    call.spec.op = reduce_op(options.reduceOp, "reduce_scatter_tensor");
    call.spec.count = output.numel();
    call.input = input.data_ptr();
    call.output = output.data_ptr();
    call.will_wait = waits(options);
    call.keep = {input, output};
    call.outputs = {output};
    return start(std::move(call));
  });
}

TorchBackend::WorkPointer TorchBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                               const c10d::GatherOptions& options) {
  return with_python_errors([&] {
    const at::Tensor& input = only(inputs, "gather");
    check_root(options.rootRank, size_, "gather");
    Call call{.type = c10d::OpType::GATHER, .timeout = options.timeout};
    call.spec.collective = Collective::gather;
    call.spec.dtype = dtype_of(input);
    call.spec.root = static_cast<int>(options.rootRank);
    call.spec.count = input.numel();
    call.input = input.data_ptr();
    call.will_wait = waits(options);
    call.keep = {input};
    if (rank_ == options.rootRank) {
      if (outputs.size() != 1) {
        throw Error(Code::invalid_argument,
                    "gather: expected one list of outputs on the root, got " +
                        std::to_string(outputs.size()));
      }
      check_list(outputs[0], input, size_, "gather");
      Flat flat = flatten(outputs[0]);
      call.output = flat.tensor.data_ptr();
      call.keep.push_back(flat.tensor);
      call.outputs = outputs[0];
      call.finish = [flat, list = outputs[0]]() mutable { copy_out(flat, list); };
    } else if (!outputs.empty() && !(outputs.size() == 1 && outputs[0].empty())) {
      throw Error(Code::invalid_argument, "gather: expected no outputs except on the root, got " +
                                              std::to_string(outputs.size()) + " lists");
    }
    return start(std::move(call));
  });
}

TorchBackend::WorkPointer TorchBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                const c10d::ScatterOptions& options) {
  return with_python_errors([&] {
    const at::Tensor& output = only(outputs, "scatter");
    check_root(options.rootRank, size_, "scatter");
    Call call{.type = c10d::OpType::SCATTER, .timeout = options.timeout};
    call.spec.collective = Collective::scatter;
    call.spec.dtype = dtype_of(output);
    call.spec.root = static_cast<int>(options.rootRank);
    call.spec.count = output.numel();
    call.output = output.data_ptr();
    call.will_wait = waits(options);
    call.keep = {output};
    call.outputs = {output};
    if (rank_ == options.rootRank) {
      if (inputs.size() != 1) {
        throw Error(Code::invalid_argument,
                    "scatter: expected one list of inputs on the root, got " +
                        std::to_string(inputs.size()));
      }
      check_list(inputs[0], output, size_, "scatter");
      Flat flat = flatten(inputs[0]);
      copy_in(flat, inputs[0]);
      call.input = flat.tensor.data_ptr();
      call.keep.push_back(flat.tensor);
      call.keep.insert(call.keep.end(), inputs[0].begin(), inputs[0].end());
    } else if (!inputs.empty() && !(inputs.size() == 1 && inputs[0].empty())) {
      throw Error(Code::invalid_argument, "scatter: expected no inputs except on the root, got " +
                                              std::to_string(inputs.size()) + " lists");
    }
    return start(std::move(call));
  });
}

TorchBackend::WorkPointer TorchBackend::barrier(const c10d::BarrierOptions& options) {
  return with_python_errors([&] {
    Call call{.type = c10d::OpType::BARRIER, .timeout = options.timeout};
    call.spec.collective = Collective::barrier;
    call.spec.dtype = Dtype::uint8;
    call.spec.op = ReduceOp::max;
    call.will_wait = waits(options);
    return start(std::move(call));
  });
}

TorchBackend::WorkPointer TorchBackend::send(Tensors& tensors, int to, int tag) {
  return with_python_errors([&]() -> WorkPointer {
    const at::Tensor& tensor = only(tensors, "send");
    hetcomm::Work work = communicator_->send(tensor.data_ptr(), dtype_of(tensor), tensor.numel(),
                                             to, static_cast<uint32_t>(tag), {});
    return c10::make_intrusive<TorchWork>(std::move(work), c10d::OpType::SEND, rank_, sequence_,
                                          tensors, tensors);
  });
}

TorchBackend::WorkPointer TorchBackend::recv(Tensors& tensors, int from, int tag) {
  return with_python_errors([&]() -> WorkPointer {
    const at::Tensor& tensor = only(tensors, "recv");
    hetcomm::Work work = communicator_->recv(tensor.data_ptr(), dtype_of(tensor), tensor.numel(),
                                             from, static_cast<uint32_t>(tag), {});
    return c10::make_intrusive<TorchWork>(std::move(work), c10d::OpType::RECV, rank_, sequence_,
                                          tensors, tensors);
  });
}

void TorchBackend::setTimeout(std::chrono::milliseconds timeout) {
  communicator_->set_timeout(timeout);
}

void TorchBackend::abort() { communicator_->abort("torch asked for it"); }

void TorchBackend::shutdown() { communicator_->leave(); }

}  // namespace hetcomm
