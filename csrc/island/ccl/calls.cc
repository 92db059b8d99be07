// Calls of collectives.
#include <algorithm>

#include "island/ccl/communicator.h"

namespace hetcomm {
namespace {

bool is_message(const nccl::Call& call) {
  return call.function == nccl::Function::send || call.function == nccl::Function::recv;
}

bool failed(nccl::Result result) { return result != nccl::success && result != nccl::in_progress; }

}  // namespace

nccl::Result CclCommunicator::call(const nccl::Call& call, nccl::Communicator* handle) {
  using nccl::Function;
  switch (call.function) {
    case Function::all_reduce:
      return library_.AllReduce(call.source, call.target, call.count, call.type, call.op, handle,
                                stream_);
    case Function::reduce_scatter:
      return library_.ReduceScatter(call.source, call.target, call.count, call.type, call.op,
                                    handle, stream_);
    case Function::all_gather:
      return library_.AllGather(call.source, call.target, call.count, call.type, handle, stream_);
    case Function::reduce:
      return library_.Reduce(call.source, call.target, call.count, call.type, call.op, call.peer,
                             handle, stream_);
    case Function::broadcast:
      return library_.Broadcast(call.source, call.target, call.count, call.type, call.peer, handle,
                                stream_);
    case Function::send:
      return library_.Send(call.source, call.count, call.type, call.peer, handle, stream_);
    case Function::recv:
      return library_.Recv(call.target, call.count, call.type, call.peer, handle, stream_);
    case Function::copy:
      break;
  }
  return nccl::invalid_argument;
}

nccl::Result CclCommunicator::group(const std::vector<nccl::Call>& calls,
                                    nccl::Communicator* handle, std::string& function) {
  auto failed_in = [&](const char* name, nccl::Result result) {
    if (failed(result)) function = std::string("nccl") + name;
    return failed(result);
  };
  if (calls.size() == 1) {
    const nccl::Result result = call(calls[0], handle);
    failed_in(name(calls[0].function), result);
    return result;
  }
  nccl::Result result = library_.GroupStart();
  if (failed_in("GroupStart", result)) return result;
  for (const nccl::Call& one : calls) {
    result = call(one, handle);
    if (failed_in(name(one.function), result)) {
      library_.GroupEnd();  // leaves the group
      return result;
    }
  }
  result = library_.GroupEnd();
  failed_in("GroupEnd", result);
  return result;
}

nccl::Result CclCommunicator::issue(const std::vector<nccl::Call>& calls, std::string& function) {
  if (!guard_ || std::any_of(calls.begin(), calls.end(), is_message)) {
    return group(calls, first_.handle, function);
  }
  guard_->enter();
  nccl::Result result = group(calls, blocking_.handle, function);
  guard_->leave();
  if (!guard_->fired()) return result;
  function = std::string("nccl") + name(calls.front().function);
  return failed(result) ? result : nccl::internal_error;
}

nccl::Result CclCommunicator::issue(std::vector<nccl::Call> calls, nccl::Factor factor,
                                    std::string& function) {
  nccl::Communicator* handle = guard_ ? blocking_.handle : first_.handle;  // of the reduction
  nccl::RedOp op = nccl::sum;
  nccl::Result result = library_.RedOpCreatePreMulSum(&op, factor.scalar.data(), factor.type,
                                                      nccl::scalar_host_immediate, handle);
  if (result != nccl::success) {
    function = "ncclRedOpCreatePreMulSum";
    return result;
  }
  for (nccl::Call& one : calls) one.op = op;
  result = issue(calls, function);
  // The library keeps the operation for calls that it has. After a call that did not return, the
  // handle is gone.
  if (!overdue()) library_.RedOpDestroy(op, handle);
  return result;
}

nccl::Result CclCommunicator::poll(const Side& side) const {
  nccl::Result state = nccl::success;
  const nccl::Result result = library_.CommGetAsyncError(side.handle, &state);
  return result == nccl::success ? state : result;
}

nccl::Result CclCommunicator::state() const {
  if (!guard_) return poll(first_);
  if (guard_->fired()) return nccl::internal_error;  // the library no longer has the first one
  const nccl::Result state = poll(blocking_);
  return failed(state) ? state : poll(first_);
}

}  // namespace hetcomm
