#include "torch/backend.h"

#include <ATen/EmptyTensor.h>
#include <pybind11/pybind11.h>

#include "base/timeout.h"
#include "bootstrap/bootstrap.h"
#include "torch/shared_allocator.h"
#include "torch/store.h"
#include "torch/streamed_work.h"
#include "torch/tensors.h"

namespace hetcomm {

uint64_t TorchBackend::next_id() {
  static std::atomic<uint64_t> made{0};
  return made++;
}

TorchBackend::TorchBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                           std::chrono::nanoseconds timeout, const std::string& name,
                           const std::string& vendor, int device, const std::string& codec,
                           std::function<Status()> why_stop)
    : c10d::Backend(rank, size),
      store_(store),
      name_(name),
      vendor_(vendor),
      codec_(codec),
      last_child_(c10::intrusive_ptr<c10d::Backend>()) {
  BootstrapOptions options;
  options.rank = rank;
  options.size = size;
  options.name = name;
  options.timeout = timeout;
  options.vendor = vendor;
  options.device = device;
  options.codec = codec;
  options.look = [why_stop = std::move(why_stop)] {
    GroupReference no_group(nullptr);  // set-up reports the interrupt to the other ranks
    handle_signals(no_group, [] { return std::string(); });
    if (why_stop) check(why_stop());
  };
  communicator_ =
      std::make_unique<Communicator>(bootstrap(std::make_shared<TorchStore>(store), options));
  reference_ = std::make_shared<GroupReference>(communicator_.get());
  const RankInfo& info = communicator_->topology().rank(rank);
  device_ = std::make_shared<const TorchDevice>(communicator_->device(), rank, info.vendor,
                                                info.host_name);
}

TorchBackend::~TorchBackend() { release_resources(); }

// Python may hold the interpreter's lock when it drops the last reference. The progress thread may
// need that lock to complete a future.
void TorchBackend::release_resources() {
  std::optional<pybind11::gil_scoped_release> release;
  if (Py_IsInitialized() && PyGILState_Check()) release.emplace();
  if (reference_) reference_->detach();
  communicator_.reset();
  store_.reset();
  last_child_store_.reset();
}

namespace {

// None is the group's.
std::optional<std::chrono::nanoseconds> bound_of(const Call& call) {
  if (call.timeout == c10d::kUnsetTimeout) return std::nullopt;
  return torch_timeout(call.timeout);
}

}  // namespace

TorchBackend::WorkPointer TorchBackend::submit_collective(Call call) {
  reporting_refusal([&] { bound_of(call); });
  return submit(std::move(call), ++sequence_, [this](const Call& call, const auto& options) {
    return communicator_->submit(call.spec, call.input, call.output, options);
  });
}

template <typename Submit>
TorchBackend::WorkPointer TorchBackend::submit(Call call, uint64_t sequence, const Submit& submit) {
  const bool streamed = call.access() == TensorAccess::streamed;
  Communicator::CallOptions options;
  options.will_wait = call.will_wait && !streamed;
  options.timeout = bound_of(call);
  // A barrier has no tensors. It also waits for the work in the streams of all ranks so far.
  if (device_->has_streams()) options.stream = native(device_->current_stream());
  if (call.access() == TensorAccess::copied &&
      communicator_->device()->capturing(*options.stream)) {
    throw_invalid(call.operation, "tensors on the device while a graph is being captured",
                  "CPU tensors, which are copied now", "move them there first");
  }
  reporting_refusal([&] { options.residual = CallCodec::of_thread().residual(call.spec, size_); });
  if (timed_ || observer_->has_hook()) call.timing = std::make_shared<Timing>();
  hetcomm::Work work = submit(call, options);
  if (call.timing) observer_->watch(work, call.timing, call.type, sequence);
  if (streamed) {
    return add_to_batch(c10::make_intrusive<StreamedWork>(std::move(work), std::move(call), rank_,
                                                          sequence, reference_));
  }
  return add_to_batch(c10::make_intrusive<TorchWork>(std::move(work), std::move(call), rank_,
                                                     sequence, reference_));
}

TorchBackend::WorkPointer TorchBackend::allreduce(Tensors& tensors,
                                                  const c10d::AllreduceOptions& options) {
  if (!tensors.empty() && tensors[0].is_sparse()) return allreduce_sparse(tensors, options);
  return run("all_reduce", c10d::OpType::ALLREDUCE, Collective::all_reduce, options,
             [&](Call& call) {
               call.in_place_reduced_locally(tensors, options.reduceOp);
               call.reduce_by(options.reduceOp);
             });
}

TorchBackend::WorkPointer TorchBackend::broadcast(Tensors& tensors,
                                                  const c10d::BroadcastOptions& options) {
  return run("broadcast", c10d::OpType::BROADCAST, Collective::broadcast, options, [&](Call& call) {
    call.in_place_from_one(tensors, options.rootTensor);
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

template <typename Post>
TorchBackend::WorkPointer TorchBackend::message(const char* operation, c10d::OpType type,
                                                Collective direction, Tensors& tensors, int tag,
                                                const Post& post) {
  const auto start = [&]() -> WorkPointer {
    Call call(operation, type, direction, device_, rank_, size_);
    if (tag < 0) {  // tags with the highest bit are the group's own
      throw_invalid(operation, "a tag that is not negative", std::to_string(tag),
                    "count tags from 0");
    }
    const at::Tensor& tensor = only(tensors, operation);
    if (direction == Collective::send) {
      call.read_part(tensor);
      call.outputs = tensors;
    } else {
      call.write_part(tensor);
    }
    return submit(std::move(call), sequence_, [&](const Call& call, const auto& options) {
      return post(call, static_cast<uint32_t>(tag), options);
    });
  };
  return start_message(std::cref(start));
}

TorchBackend::WorkPointer TorchBackend::send(Tensors& tensors, int to, int tag) {
  return message("send", c10d::OpType::SEND, Collective::send, tensors, tag,
                 [&](const Call& call, uint32_t tag, const auto& options) {
                   return communicator_->send(call.input, call.spec.dtype, call.spec.count, to, tag,
                                              options);
                 });
}

TorchBackend::WorkPointer TorchBackend::recv(Tensors& tensors, int from, int tag) {
  return message("recv", c10d::OpType::RECV, Collective::recv, tensors, tag,
                 [&](const Call& call, uint32_t tag, const auto& options) {
                   return communicator_->recv(call.output, call.spec.dtype, call.spec.count, from,
                                              tag, options);
                 });
}

TorchBackend::WorkPointer TorchBackend::recvAnysource(Tensors& tensors, int tag) {
  return message("recvAnySource", c10d::OpType::RECVANYSOURCE, Collective::recv, tensors, tag,
                 [&](const Call& call, uint32_t tag, const auto& options) {
                   return communicator_->recv_any(call.output, call.spec.dtype, call.spec.count,
                                                  tag, options);
                 });
}

void TorchBackend::setTimeout(std::chrono::milliseconds timeout) {
  with_python_errors([&] { communicator_->set_timeout(torch_timeout(timeout)); });
}

void TorchBackend::register_buffer(const at::Tensor& tensor) {
  with_python_errors([&] {
    check_tensor(tensor, "register_buffer");
    if (device_->access(tensor, "register_buffer") == TensorAccess::copied ||
        !tensor.is_contiguous()) {
      throw_invalid("register_buffer", "a contiguous tensor in the memory of the group's device",
                    "one with gaps or of the host", "register what collectives will use");
    }
    communicator_->register_buffer(tensor.data_ptr(), tensor.nbytes());
  });
}

bool TorchBackend::supportsTensorAlloc(c10::DeviceIndex device) {
  const Topology& topology = communicator_->topology();
  return device < 0 && communicator_->device() == nullptr &&
         topology.island(topology.island_of(rank_)).size() > 1;
}

at::Tensor TorchBackend::allocateTensor(long size, at::TensorOptions options) {
  return with_python_errors([&] {
    if (!options.device().is_cpu() || !supportsTensorAlloc(options.device().index())) {
      throw_invalid(
          "allocate_tensor", "the CPU, on a rank that shares memory with other ranks of its host",
          options.device().str() + (communicator_->device() ? " on a rank of device memory" : ""),
          "ask supports_tensor_alloc() first, or use torch.empty()");
    }
    return at::Tensor(at::detail::empty_generic({size}, &SharedAllocator::instance(),
                                                c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                c10::typeMetaToScalarType(options.dtype()), {}));
  });
}

ErrorType TorchBackend::getError() {
  // Numbers of torch: success, timeout, error of the communicator, error of another rank.
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
