// The collective library's functions: checks and groups; Communicator does the work.
#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "emulated/communicator.h"
#include "emulated/memory.h"
#include "emulated/runtime.h"
#include "emulated/settings.h"

#define X(name, parameters) EXPORT int nccl##name parameters;
HETCOMM_EMULATED_CCL(X)
#undef X

namespace hetcomm::emulated {

namespace {

struct Pending {  // the calls of a group to one communicator
  std::shared_ptr<Communicator> communicator;
  std::shared_ptr<Stream> stream;
  std::vector<Call> calls;
};

struct Group {  // of one thread
  int depth = 0;
  int result = ccl_success;  // the first failure inside
  std::vector<Pending> pending;
  std::vector<std::shared_ptr<Communicator>> connecting;
};

thread_local Group group;

class Inside {  // a call for a communicator
 public:
  explicit Inside(Communicator& communicator) : communicator_(communicator) {
    communicator_.enter();
  }
  ~Inside() { communicator_.leave(); }
  Inside(const Inside&) = delete;

 private:
  Communicator& communicator_;
};

// Runs `function`, which throws Failure or returns a result code.
template <typename Function>
int guarded(Function&& function, std::source_location where = std::source_location::current()) {
  count_call(where);
  int result = ccl_success;
  try {
    if (enter() != success) {
      throw Failure{ccl_unhandled_runtime_error, "the runtime is not usable in this process"};
    }
    result = function();
  } catch (const Failure& failure) {
    result = fail(failure.result, failure.text);
    if (group.depth == 0) group = {};
  }
  if (group.depth > 0 && result != ccl_in_progress && group.result == ccl_success) {
    group.result = result;
  }
  return result;
}

void require(bool condition, int result, const char* text) {
  if (!condition) throw Failure{result, text};
}

int flush() {  // the end of the outermost group
  Group done;
  std::swap(done, group);
  if (done.result != ccl_success) return done.result;
  int result = ccl_success;
  for (const auto& communicator : done.connecting) {
    int state = communicator->options().blocking ? communicator->wait_for_state() : ccl_in_progress;
    if (result == ccl_success) result = state;
  }
  for (const Pending& pending : done.pending) {
    require(pending.communicator->options().blocking ==
                done.pending.front().communicator->options().blocking,
            ccl_invalid_argument, "blocking and non-blocking communicators in one group");
  }
  for (Pending& pending : done.pending) {
    const Inside inside(*pending.communicator);
    if (pending.communicator->options().blocking && !pending.communicator->accept(pending.calls)) {
      return fail(ccl_internal_error, "the communicator was aborted during a call");
    }
    pending.communicator->submit(std::move(pending.calls), pending.stream);
    if (!pending.communicator->options().blocking) result = pending.communicator->state();
  }
  return result;
}

int add(void* handle, void* stream_handle, Call call,
        std::source_location where = std::source_location::current()) {
  const auto added = [&] {
    std::shared_ptr<Communicator> communicator = Communicator::find(handle);
    communicator->require_ready();
    std::shared_ptr<Stream> stream = Stream::find(stream_handle, communicator->device());
    require(stream != nullptr, ccl_invalid_argument, "unknown stream");
    bool rooted = call.kind == CallKind::reduce || call.kind == CallKind::broadcast ||
                  call.kind == CallKind::message;
    require(!rooted || (call.peer >= 0 && call.peer < communicator->size()), ccl_invalid_argument,
            "the root or peer is not a rank of the communicator");
    require(size_of_type(call.type) > 0, ccl_invalid_argument, "unknown data type");
    if (call.kind <= CallKind::reduce) {
      call.reduction = communicator->reduction(call.reduction.op, call.type);
    }
    auto same = [&](const Pending& pending) { return pending.communicator == communicator; };
    auto found = std::find_if(group.pending.begin(), group.pending.end(), same);
    if (found == group.pending.end()) {
      group.pending.push_back({communicator, stream, {}});
      found = std::prev(group.pending.end());
    }
    require(found->stream == stream, ccl_invalid_usage,
            "emulated: one stream per communicator in a group");
    found->calls.push_back(call);
    return group.depth == 0 ? flush() : ccl_success;
  };
  return guarded(added, where);
}

int open(void** handle, int size, const UniqueId& id, int rank, const Config* config) {
  return guarded([&] {
    require(handle != nullptr, ccl_invalid_argument, "the communicator's address is null");
    *handle = nullptr;
    require(size >= 1 && rank >= 0 && rank < size, ccl_invalid_argument,
            "the rank is not one of the communicator's");
    CommunicatorOptions options = read_config(config, {});
    Identity identity = read_unique_id(id);
    auto communicator = std::make_shared<Communicator>(rank, size, current_device(), options);
    *handle = communicator->enroll();
    communicator->connect(identity);
    if (!options.blocking) return ccl_in_progress;
    if (group.depth > 0) {
      group.connecting.push_back(communicator);
      return ccl_success;
    }
    int result = communicator->wait_for_state();
    if (result != ccl_success) {
      communicator->forget();
      *handle = nullptr;
    }
    return result;
  });
}

template <typename Function>
int with(void* handle, Function&& function,
         std::source_location where = std::source_location::current()) {
  const auto inside = [&] {
    const std::shared_ptr<Communicator> communicator = Communicator::find(handle);
    const Inside call(*communicator);
    return function(*communicator);
  };
  return guarded(inside, where);
}

int tell(int* target, int value) {
  require(target != nullptr, ccl_invalid_argument, "the result's address is null");
  *target = value;
  return ccl_success;
}

int tell_ready(void* handle, int* target, int (Communicator::*value)() const) {
  return with(handle, [&](Communicator& communicator) {
    communicator.require_ready();
    return tell(target, (communicator.*value)());
  });
}

Call make_call(CallKind kind, const void* source, void* target, size_t count, int type,
               int peer = -1, int op = op_sum) {
  Call call{kind, source, target, count, type, peer};
  call.reduction.op = op;
  return call;
}

}  // namespace

}  // namespace hetcomm::emulated

using namespace hetcomm::emulated;

EXPORT const char* ncclGetErrorString(int result) {
  constexpr const char* texts[] = {"no error",
                                   "unhandled runtime error",
                                   "unhandled system error",
                                   "internal error",
                                   "invalid argument",
                                   "invalid usage",
                                   "remote process exited or network error",
                                   "operation in progress"};
  bool known = result >= 0 && result < static_cast<int>(std::size(texts));
  return known ? texts[result] : "unknown result code";
}

EXPORT const char* ncclGetLastError(void*) { return latest_note(); }

int ncclGetVersion(int* version) {
  if (version == nullptr) return ccl_invalid_argument;
  *version = emulated_version();
  return ccl_success;
}

int ncclGetUniqueId(UniqueId* id) {
  return guarded([&] {
    require(id != nullptr, ccl_invalid_argument, "the unique id's address is null");
    *id = make_unique_id();
    return ccl_success;
  });
}

int ncclCommInitRank(void** communicator, int size, UniqueId id, int rank) {
  return open(communicator, size, id, rank, nullptr);
}

int ncclCommInitRankConfig(void** communicator, int size, UniqueId id, int rank, Config* config) {
  return open(communicator, size, id, rank, config);
}

int ncclCommSplit(void* handle, int color, int key, void** made, Config* config) {
  return with(handle, [&](Communicator& parent) {
    require(made != nullptr, ccl_invalid_argument, "the communicator's address is null");
    require(color >= 0 || color == kNoColor, ccl_invalid_argument, "colors are not negative");
    parent.require_ready();
    *made = nullptr;
    CommunicatorOptions options = read_config(config, parent.options());
    parent.split(color, key, options, made);
    return ccl_success;  // as NCCL 2.18 to 2.30, also where the split has only begun
  });
}

int ncclCommFinalize(void* handle) {
  return with(handle, [](Communicator& communicator) {
    communicator.require_ready();
    communicator.finalize();
    return communicator.options().blocking ? communicator.wait_for_state() : ccl_in_progress;
  });
}

int ncclCommDestroy(void* handle) {
  if (handle == nullptr) return ccl_success;
  return with(handle, [](Communicator& communicator) {
    if (settings().hostile.handles && communicator.inside() > 1) {
      die("ncclCommDestroy while another thread is in a call for the communicator");
    }
    communicator.wait_for_state();
    communicator.wait_submitted();
    communicator.end(communicator.state() != ccl_success);
    return ccl_success;
  });
}

int ncclCommAbort(void* handle) {
  if (handle == nullptr) return ccl_success;
  return with(handle, [](Communicator& communicator) {
    while (settings().injects(FaultKind::abort_hang, communicator.rank())) {
      std::this_thread::sleep_for(std::chrono::hours(1));
    }
    communicator.end(true);
    return ccl_success;
  });
}

int ncclCommGetAsyncError(void* handle, int* result) {
  return with(handle,
              [&](Communicator& communicator) { return tell(result, communicator.state()); });
}

int ncclCommCount(void* handle, int* count) {
  return tell_ready(handle, count, &Communicator::size);
}

int ncclCommCuDevice(void* handle, int* device) {
  return tell_ready(handle, device, &Communicator::device);
}

int ncclCommUserRank(void* handle, int* rank) {
  return tell_ready(handle, rank, &Communicator::rank);
}

int ncclCommRegister(void* handle, void* buffer, size_t bytes, void** registration) {
  return with(handle, [&](Communicator& communicator) {
    communicator.require_ready();
    return communicator.register_buffer(buffer, bytes, registration);
  });
}

int ncclCommDeregister(void* handle, void* registration) {
  return with(handle, [&](Communicator& communicator) {
    return communicator.deregister_buffer(registration);
  });
}

int ncclMemAlloc(void** pointer, size_t bytes) {
  return guarded([&] {
    require(NAME(Malloc)(pointer, bytes) == success, ccl_unhandled_runtime_error, "out of memory");
    return ccl_success;
  });
}

int ncclMemFree(void* pointer) {
  return guarded([&] {
    require(!Communicator::registered(pointer), ccl_invalid_usage,
            "memory is freed while it is registered");
    require(NAME(Free)(pointer) == success, ccl_invalid_argument, "not memory of ncclMemAlloc");
    return ccl_success;
  });
}

int ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int residence, void* handle) {
  return with(handle, [&](Communicator& communicator) {
    require(op != nullptr && scalar != nullptr, ccl_invalid_argument, "a null pointer");
    require(size_of_type(type) > 0, ccl_invalid_argument, "unknown data type");
    Reduction made;
    made.scaled = true;
    if (residence == scalar_immediate) {
      std::copy_n(static_cast<unsigned char*>(scalar), size_of_type(type), made.factor.bytes);
    } else {
      made.factor_at = scalar;
    }
    return tell(op, communicator.add_reduction(made));
  });
}

int ncclRedOpDestroy(int op, void* handle) {
  return with(handle, [&](Communicator& communicator) {
    require(communicator.remove_reduction(op), ccl_invalid_argument, "unknown operation");
    return ccl_success;
  });
}

int ncclAllReduce(const void* source, void* target, size_t count, int type, int op,
                  void* communicator, void* stream) {
  return add(communicator, stream,
             make_call(CallKind::all_reduce, source, target, count, type, -1, op));
}

int ncclReduceScatter(const void* source, void* target, size_t count, int type, int op,
                      void* communicator, void* stream) {
  return add(communicator, stream,
             make_call(CallKind::reduce_scatter, source, target, count, type, -1, op));
}

int ncclReduce(const void* source, void* target, size_t count, int type, int op, int root,
               void* communicator, void* stream) {
  return add(communicator, stream,
             make_call(CallKind::reduce, source, target, count, type, root, op));
}

int ncclAllGather(const void* source, void* target, size_t count, int type, void* communicator,
                  void* stream) {
  return add(communicator, stream, make_call(CallKind::all_gather, source, target, count, type));
}

int ncclBroadcast(const void* source, void* target, size_t count, int type, int root,
                  void* communicator, void* stream) {
  return add(communicator, stream,
             make_call(CallKind::broadcast, source, target, count, type, root));
}

int ncclSend(const void* source, size_t count, int type, int peer, void* communicator,
             void* stream) {
  Call call = make_call(CallKind::message, source, nullptr, count, type, peer);
  call.sending = true;
  return add(communicator, stream, call);
}

int ncclRecv(void* target, size_t count, int type, int peer, void* communicator, void* stream) {
  return add(communicator, stream,
             make_call(CallKind::message, nullptr, target, count, type, peer));
}

int ncclGroupStart() {
  ++group.depth;
  return ccl_success;
}

int ncclGroupEnd() {
  if (group.depth == 0) return fail(ccl_invalid_usage, "ncclGroupEnd without ncclGroupStart");
  if (--group.depth > 0) return ccl_success;
  return guarded(flush);
}
