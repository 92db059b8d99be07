#include "island/ccl/communicator.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/config.h"
#include "base/log.h"

namespace hetcomm {
namespace {

constexpr auto kAbortBound = std::chrono::seconds(5);
// How often to look whether another member has failed already, and how long.
constexpr auto kLookAfter = std::chrono::seconds(1);
constexpr auto kLookBound = std::chrono::milliseconds(20);
constexpr auto kReasonBound = std::chrono::seconds(2);  // for what the library noticed first

// How the first call went; shared with its thread, which may be given up while it goes on.
struct Opening {
  std::mutex mutex;
  bool given_up = false;
  Status status;
  nccl::Result result = nccl::in_progress;
};

class Pause {
 public:
  void operator()() {
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(2 * pause_, std::chrono::microseconds(2000));
  }

 private:
  std::chrono::microseconds pause_{50};
};

std::string missing_members(const CclOptions& options, const CclLibrary& library,
                            Deadline deadline) {
  std::string ranks;
  for (int i = 0; i < options.members; ++i) {
    ranks += (i ? ", " : "") + std::to_string(options.ranks.empty() ? i : options.ranks[i]);
  }
  return library.version + ": expected the ranks " + ranks + " in one communicator within " +
         format_seconds(deadline.timeout().count() * 1e-9) +
         "; got none: its initialisation is still under way; check that all are alive and reach "
         "each other over " +
         (options.network.empty() ? "the network that it chooses" : options.network) +
         " (NCCL_DEBUG=INFO shows how it tries)";
}

}  // namespace

CclCommunicator::CclCommunicator(const CclOptions& options)
    : device_(options.device),
      library_(ccl_library(options.device->vendor())),
      network_(options.network),
      rank_(options.ranks.empty() ? options.member : options.ranks[options.member]) {}

Status CclCommunicator::begin(const CclOptions& options, nccl::Result& result) {
  nccl::Config config;
  config.blocking = 0;
  if (!network_.empty()) config.net_name = network_.c_str();
  if (options.min_ctas > 0) config.min_ctas = options.min_ctas;
  if (options.max_ctas > 0) config.max_ctas = options.max_ctas;
  if (options.split_share) config.split_share = 1;
  nccl::UniqueId id;
  std::memcpy(id.bytes, options.unique_id.data(), sizeof id.bytes);
  try {
    stream_ = device_->make_stream();  // also makes the device current, which the library takes
  } catch (const Error& error) {
    return error.status();
  }
  result = library_.CommInitRankConfig(&handle_, options.members, id, options.member, &config);
  return {};
}

std::shared_ptr<CclCommunicator> CclCommunicator::open(const CclOptions& options,
                                                       Deadline deadline) {
  std::shared_ptr<CclCommunicator> communicator(new CclCommunicator(options));
  auto opening = std::make_shared<Opening>();
  // Also a non-blocking initialisation first loads plug-ins and wakes the driver.
  Detached thread([communicator, opening, options] {
    nccl::Result result = nccl::internal_error;
    Status status = communicator->begin(options, result);
    std::lock_guard lock(opening->mutex);
    opening->status = status;
    opening->result = result;
    if (opening->given_up) communicator->finish();
  });
  Status absent;
  auto look = [&](std::chrono::nanoseconds bound) {
    if (options.failure) absent = options.failure(Deadline(bound));
  };
  bool begun = false;
  while (!begun && !deadline.passed() && absent.ok()) {
    begun = thread.wait(Deadline(std::min<std::chrono::nanoseconds>(deadline.left(), kLookAfter)));
    if (!begun) look(kLookBound);
  }
  nccl::Result result = nccl::in_progress;
  {
    std::lock_guard lock(opening->mutex);
    opening->given_up = !begun;
    if (begun) result = opening->result;
    check(opening->status);
  }
  auto looked = Clock::now();
  for (Pause pause; begun && result == nccl::in_progress && !deadline.passed() && absent.ok();
       pause()) {
    result = communicator->state();
    if (Clock::now() - looked < kLookAfter) continue;
    look(kLookBound);
    looked = Clock::now();
  }
  if (result == nccl::success) return communicator;
  if (result == nccl::remote_error) look(kReasonBound);

  const bool late = result == nccl::in_progress;
  std::string text =
      late ? missing_members(options, communicator->library_, deadline)
           : communicator->failure("ncclCommInitRankConfig", result) +
                 "; give all ranks the same " + communicator->library_.vendor->ccl +
                 " and a network that it can use (NCCL_DEBUG=INFO shows what it finds)";
  if (begun) communicator->abort();
  if (!begun || !communicator->aborted(Deadline(kAbortBound))) {
    text += "; it does not let itself be aborted either, so end this process soon";
  }
  check(absent);
  throw Error(Status(late ? Code::timeout : Code::vendor, text, communicator->rank_));
}

nccl::Result CclCommunicator::call(const nccl::Call& call) {
  using nccl::Function;
  switch (call.function) {
    case Function::all_reduce:
      return library_.AllReduce(call.source, call.target, call.count, call.type, call.op, handle_,
                                stream_);
    case Function::reduce_scatter:
      return library_.ReduceScatter(call.source, call.target, call.count, call.type, call.op,
                                    handle_, stream_);
    case Function::all_gather:
      return library_.AllGather(call.source, call.target, call.count, call.type, handle_, stream_);
    case Function::reduce:
      return library_.Reduce(call.source, call.target, call.count, call.type, call.op, call.peer,
                             handle_, stream_);
    case Function::broadcast:
      return library_.Broadcast(call.source, call.target, call.count, call.type, call.peer, handle_,
                                stream_);
    case Function::send:
      return library_.Send(call.source, call.count, call.type, call.peer, handle_, stream_);
    case Function::recv:
      return library_.Recv(call.target, call.count, call.type, call.peer, handle_, stream_);
    case Function::copy:
      break;
  }
  return nccl::invalid_argument;
}

nccl::Result CclCommunicator::issue(const std::vector<nccl::Call>& calls, std::string& function) {
  auto failed = [&](nccl::Result result, const char* name) {
    if (result == nccl::success || result == nccl::in_progress) return false;
    function = std::string("nccl") + name;
    return true;
  };
  if (calls.size() == 1) {
    const nccl::Result result = call(calls[0]);
    failed(result, name(calls[0].function));
    return result;
  }
  nccl::Result result = library_.GroupStart();
  if (failed(result, "GroupStart")) return result;
  for (const nccl::Call& one : calls) {
    result = call(one);
    if (failed(result, name(one.function))) {
      library_.GroupEnd();  // leaves the group; has no more to say
      return result;
    }
  }
  result = library_.GroupEnd();
  failed(result, "GroupEnd");
  return result;
}

nccl::Result CclCommunicator::state() const {
  nccl::Result state = nccl::success;
  const nccl::Result result = library_.CommGetAsyncError(handle_, &state);
  return result == nccl::success ? state : result;
}

std::string CclCommunicator::failure(const std::string& function, nccl::Result result) const {
  return library_.failure(function, result, handle_);
}

void CclCommunicator::abort() {
  if (abort_) return;
  try {
    abort_.emplace([self = shared_from_this()] { self->finish(); });
  } catch (const Error& error) {
    log(LogLevel::error, error.what(), rank_);
  }
}

bool CclCommunicator::aborted(Deadline deadline) const { return abort_ && abort_->wait(deadline); }

bool CclCommunicator::close(Deadline deadline) {
  auto end = [self = shared_from_this(), deadline] {
    nccl::Result result = self->library_.CommFinalize(self->handle_);
    for (Pause pause; result == nccl::in_progress && !deadline.passed(); pause()) {
      result = self->state();
    }
    if (result != nccl::success) return self->finish();
    self->library_.CommDestroy(self->handle_);
    self->release_stream();
  };
  try {
    return Detached(std::move(end)).wait(deadline);
  } catch (const Error& error) {
    log(LogLevel::error, error.what(), rank_);
    return false;
  }
}

void CclCommunicator::finish() {
  if (handle_ != nullptr) library_.CommAbort(handle_);
  release_stream();
}

void CclCommunicator::release_stream() {
  try {
    if (stream_ != nullptr) device_->destroy(stream_);
  } catch (const Error& error) {
    log(LogLevel::debug, error.what(), rank_);
  }
}

}  // namespace hetcomm
