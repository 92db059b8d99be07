#include "torch/backend.h"

#include <ATen/EmptyTensor.h>
#include <pybind11/pybind11.h>

#include "bootstrap/bootstrap.h"
#include "torch/shared_allocator.h"
#include "torch/store.h"
#include "torch/streamed_work.h"
#include "torch/tensors.h"

namespace hetcomm {
namespace {

// Those with the highest bit are the group's own.
uint32_t checked_tag(int tag, const char* operation) {
  if (tag >= 0) return static_cast<uint32_t>(tag);
  throw Error(Code::invalid_argument, std::string(operation) +
                                          ": expected a tag that is not negative, got " +
                                          std::to_string(tag) + "; count tags from 0");
}

}  // namespace

uint64_t TorchBackend::next_id() {
  static std::atomic<uint64_t> made{0};
  return made++;
}

TorchBackend::TorchBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                           std::chrono::nanoseconds timeout, const std::string& name,
                           const std::string& vendor, int device)
    : c10d::Backend(rank, size),
      store_(store),
      name_(name),
      vendor_(vendor),
      last_child_(c10::intrusive_ptr<c10d::Backend>()) {
  TorchStore torch_store(store);
  BootstrapOptions options;
  options.rank = rank;
  options.size = size;
  options.name = name;
  options.timeout = timeout;
  options.vendor = vendor;
  options.device = device;
  try {
    communicator_ = std::make_unique<Communicator>(bootstrap(torch_store, options));
  } catch (const Error&) {
    torch_store.throw_interrupt();
    throw;
  }
  reference_ = std::make_shared<GroupReference>(communicator_.get());
  const RankInfo& info = communicator_->topology().rank(rank);
  home_ = std::make_shared<const Home>(communicator_->device(), rank, info.vendor, info.host_name);
}

TorchBackend::~TorchBackend() { release_resources(); }

// Python may drop the last reference with the interpreter's lock held, which the progress thread
// may need to complete a future.
void TorchBackend::release_resources() {
  std::optional<pybind11::gil_scoped_release> release;
  if (Py_IsInitialized() && PyGILState_Check()) release.emplace();
  if (reference_) reference_->forget();
  communicator_.reset();
  store_.reset();
  last_child_store_.reset();
}

TorchBackend::WorkPointer TorchBackend::start(Call call) {
  return finish(std::move(call), ++sequence_, [this](const Call& call, const auto& options) {
    return communicator_->submit(call.spec, call.input, call.output, options);
  });
}

template <typename Submit>
TorchBackend::WorkPointer TorchBackend::finish(Call call, uint64_t sequence, const Submit& submit) {
  const bool streamed = call.access() == Home::Access::streamed;
  Communicator::CallOptions options;
  options.will_wait = call.will_wait && !streamed;
  if (call.timeout != c10d::kUnsetTimeout) options.timeout = timeout_of(call.timeout);
  // Without tensors (barrier) it is the stream's work so far that the others wait for.
  if (home_->streams()) options.stream = native(home_->current_stream());
  if (call.access() == Home::Access::copied &&
      communicator_->device()->capturing(*options.stream)) {
    throw Error(Code::invalid_argument,
                std::string(call.operation) +
                    ": expected tensors on the device while a graph is being recorded, got CPU "
                    "tensors, which are copied now; move them there first");
  }
  if (timed_ || observer_->has_hook()) call.timing = std::make_shared<Timing>();
  hetcomm::Work work = submit(call, options);
  if (call.timing) observer_->watch(work, call.timing, call.type, sequence);
  if (streamed) {
    return batched(c10::make_intrusive<StreamedWork>(std::move(work), std::move(call), rank_,
                                                     sequence, reference_));
  }
  return batched(c10::make_intrusive<TorchWork>(std::move(work), std::move(call), rank_, sequence,
                                                reference_));
}

TorchBackend::WorkPointer TorchBackend::allreduce(Tensors& tensors,
                                                  const c10d::AllreduceOptions& options) {
  if (!tensors.empty() && tensors[0].is_sparse()) return allreduce_sparse(tensors, options);
  return run("all_reduce", c10d::OpType::ALLREDUCE, Collective::all_reduce, options,
             [&](Call& call) {
               call.in_place_combined(tensors, options.reduceOp);
               call.reduce_by(options.reduceOp);
             });
}

TorchBackend::WorkPointer TorchBackend::broadcast(Tensors& tensors,
                                                  const c10d::BroadcastOptions& options) {
  return run("broadcast", c10d::OpType::BROADCAST, Collective::broadcast, options, [&](Call& call) {
    call.in_place_as_one(tensors, options.rootTensor);
    call.rooted(options.rootRank);
  });
}

TorchBackend::WorkPointer TorchBackend::reduce(Tensors& tensors,
                                               const c10d::ReduceOptions& options) {
  return run("reduce", c10d::OpType::REDUCE, Collective::reduce, options, [&](Call& call) {
    call.in_place(tensors);
    call.rooted(options.rootRank);
    call.reduce_by(options.reduceOp);
  });
}

TorchBackend::WorkPointer TorchBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                  const c10d::AllgatherOptions& options) {
  return run("all_gather", c10d::OpType::ALLGATHER, Collective::all_gather, options,
             [&](Call& call) {
               if (inputs.size() > 1) return call.gather_several(inputs, outputs);
               call.read_part(only(inputs, call.operation));
               call.write_list(outputs);
             });
}

TorchBackend::WorkPointer TorchBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                        const c10d::AllgatherOptions& options) {
  return run("all_gather_into_tensor", c10d::OpType::_ALLGATHER_BASE, Collective::all_gather,
             options, [&](Call& call) {
               call.read_part(input);
               call.write_all(output);
             });
}

TorchBackend::WorkPointer TorchBackend::reduce_scatter(Tensors& outputs,
                                                       std::vector<Tensors>& inputs,
                                                       const c10d::ReduceScatterOptions& options) {
  return run("reduce_scatter", c10d::OpType::REDUCE_SCATTER, Collective::reduce_scatter, options,
             [&](Call& call) {
               call.write_part(only(outputs, call.operation));
               call.read_list(inputs);
               call.reduce_by(options.reduceOp);
             });
}

TorchBackend::WorkPointer TorchBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  return run("reduce_scatter_tensor", c10d::OpType::_REDUCE_SCATTER_BASE,
             Collective::reduce_scatter, options, [&](Call& call) {
               call.write_part(output);
               call.read_all(input);
               call.reduce_by(options.reduceOp);
             });
}

TorchBackend::WorkPointer TorchBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                               const c10d::GatherOptions& options) {
  return run("gather", c10d::OpType::GATHER, Collective::gather, options, [&](Call& call) {
    call.read_part(only(inputs, call.operation));
    call.rooted(options.rootRank);
    call.write_list(outputs);
  });
}

TorchBackend::WorkPointer TorchBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                const c10d::ScatterOptions& options) {
  return run("scatter", c10d::OpType::SCATTER, Collective::scatter, options, [&](Call& call) {
    call.write_part(only(outputs, call.operation));
    call.rooted(options.rootRank);
    call.read_list(inputs);
  });
}

TorchBackend::WorkPointer TorchBackend::barrier(const c10d::BarrierOptions& options) {
  return run("barrier", c10d::OpType::BARRIER, Collective::barrier, options, [&](Call& call) {
    call.spec.dtype = Dtype::uint8;
    call.spec.op = ReduceOp::max;
  });
}

TorchBackend::WorkPointer TorchBackend::send(Tensors& tensors, int to, int tag) {
  return message([&]() -> WorkPointer {
    Call call("send", c10d::OpType::SEND, Collective::send, home_, rank_, size_);
    const uint32_t tagged = checked_tag(tag, call.operation);
    call.read_part(only(tensors, call.operation));
    call.outputs = tensors;
    return finish(std::move(call), sequence_, [&](const Call& call, const auto& options) {
      return communicator_->send(call.input, call.spec.dtype, call.spec.count, to, tagged, options);
    });
  });
}

TorchBackend::WorkPointer TorchBackend::recv(Tensors& tensors, int from, int tag) {
  return message([&]() -> WorkPointer {
    Call call("recv", c10d::OpType::RECV, Collective::recv, home_, rank_, size_);
    const uint32_t tagged = checked_tag(tag, call.operation);
    call.write_part(only(tensors, call.operation));
    return finish(std::move(call), sequence_, [&](const Call& call, const auto& options) {
      return communicator_->recv(call.output, call.spec.dtype, call.spec.count, from, tagged,
                                 options);
    });
  });
}

TorchBackend::WorkPointer TorchBackend::recvAnysource(Tensors& tensors, int tag) {
  return message([&]() -> WorkPointer {
    Call call("recvAnySource", c10d::OpType::RECVANYSOURCE, Collective::recv, home_, rank_, size_);
    const uint32_t tagged = checked_tag(tag, call.operation);
    call.write_part(only(tensors, call.operation));
    return finish(std::move(call), sequence_, [&](const Call& call, const auto& options) {
      return communicator_->recv_any(call.output, call.spec.dtype, call.spec.count, tagged,
                                     options);
    });
  });
}

void TorchBackend::setTimeout(std::chrono::milliseconds timeout) {
  communicator_->set_timeout(timeout_of(timeout));
}

void TorchBackend::register_buffer(const at::Tensor& tensor) {
  with_python_errors([&] {
    if (home_->access(tensor, "register_buffer") == Home::Access::copied ||
        !tensor.is_contiguous()) {
      throw Error(Code::invalid_argument,
                  "register_buffer: expected a contiguous tensor in the memory of the group's "
                  "device; got one with gaps or of the host; register what collectives will use");
    }
    communicator_->register_buffer(tensor.data_ptr(), tensor.nbytes());
  });
}

void TorchBackend::begin_trace() {
  with_python_errors([&] { communicator_->begin_trace(); });
}

std::vector<std::shared_ptr<const Trace>> TorchBackend::end_trace() {
  return communicator_->end_trace();
}

void TorchBackend::deregister_buffer(const at::Tensor& tensor) {
  with_python_errors([&] { communicator_->deregister_buffer(tensor.data_ptr()); });
}

bool TorchBackend::supportsTensorAlloc(c10::DeviceIndex device) {
  const Topology& topology = communicator_->topology();
  return device < 0 && communicator_->device() == nullptr &&
         topology.island(topology.island_of(rank_)).size() > 1;
}

at::Tensor TorchBackend::allocateTensor(long size, at::TensorOptions options) {
  return with_python_errors([&] {
    if (!options.device().is_cpu() || !supportsTensorAlloc(options.device().index())) {
      throw Error(
          Code::invalid_argument,
          "allocate_tensor: expected the CPU, on a rank that shares memory with other ranks "
          "of its host; got " +
              options.device().str() +
              (communicator_->device() ? " on a rank of device memory" : "") +
              "; ask supports_tensor_alloc() first, or use torch.empty()");
    }
    return at::Tensor(at::detail::empty_generic({size}, &SharedAllocator::instance(),
                                                c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                c10::typeMetaToScalarType(options.dtype()), {}));
  });
}

ErrorType TorchBackend::getError() {
  // In torch's order: success, timeout, error of the communicator, error of another rank.
  const Code code = communicator_->failure().code();
  const int error = code == Code::ok            ? 0
                    : code == Code::timeout     ? 1
                    : code == Code::peer_failed ? 3
                                                : 2;
  return static_cast<ErrorType>(error);
}

void TorchBackend::abort() { communicator_->abort("torch asked for it"); }

void TorchBackend::shutdown() { communicator_->leave(); }

}  // namespace hetcomm
