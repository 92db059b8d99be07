#include "island/ccl/communicator.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/config.h"
#include "base/events.h"
#include "base/joined.h"
#include "base/log.h"

namespace hetcomm {
namespace {

constexpr int kConnectsAtFirstUse = 22200;  // NCCL_RUNTIME_CONNECT came with 2.22
constexpr auto kAbortBound = std::chrono::seconds(5);
constexpr auto kEndPause = std::chrono::milliseconds(50);  // members may end much later
// How often set-up asks for another rank's failure, and how long each question takes.
constexpr auto kFailureInterval = std::chrono::seconds(1);
constexpr auto kFailureBound = std::chrono::milliseconds(20);
constexpr auto kReasonBound = std::chrono::seconds(3);  // if the library noticed a failure first
// A failed set-up with fewer free descriptors may have failed for lack of them.
constexpr int kFewestDescriptors = 32;

// The result of a function; shared with its thread, which may run longer than anybody waits.
struct Opening {
  std::mutex mutex;
  bool abandoned = false, over = false;
  Status status;
  nccl::Result result = nccl::in_progress;
};

class Pause {
 public:
  explicit Pause(std::chrono::microseconds longest = std::chrono::milliseconds(2))
      : longest_(longest) {}
  void operator()() {
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(2 * pause_, longest_);
  }

 private:
  const std::chrono::microseconds longest_;
  std::chrono::microseconds pause_{50};
};

// "" if this process has kFewestDescriptors left. Libraries report the lack as a failure of the
// network, too.
std::string lack_of_descriptors(const std::string& failure) try {
  require_descriptors(kFewestDescriptors, failure);
  return "";
} catch (const Error& error) {
  return error.status().details().message;
}

std::string ranks_of(const CclOptions& options) {
  std::vector<int> ranks;
  for (int i = 0; i < options.members; ++i) ranks.push_back(options.rank(i));
  return "ranks " + joined(ranks);
}

std::string missing_members(const char* function, const CclOptions& options,
                            const CclLibrary& library, Deadline deadline) {
  return library.version + ": expected the " + ranks_of(options) + " in one communicator within " +
         format_seconds(deadline.timeout()) + "; got none: " + function +
         " is still under way; check that all are alive and reach each other over " +
         (options.network.empty() ? "the network that it chooses" : options.network) +
         " (NCCL_DEBUG=INFO shows how it tries)";
}

}  // namespace

CclCommunicator::CclCommunicator(const CclOptions& options)
    : device_(options.device),
      library_(ccl_library(options.device->vendor())),
      network_(options.network),
      rank_(options.rank(options.member)),
      call_bound_(options.call_bound) {}

nccl::Config CclCommunicator::config(const CclOptions& options) const {
  nccl::Config config;
  config.blocking = 0;
  if (!network_.empty()) config.net_name = network_.c_str();
  if (options.min_ctas > 0) config.min_ctas = options.min_ctas;
  if (options.max_ctas > 0) config.max_ctas = options.max_ctas;
  return config;
}

nccl::Result CclCommunicator::begin(const CclOptions& options) {
  nccl::Config wanted = config(options);
  // The two sides share memory and the library's threads, and one abort reaches both.
  wanted.split_share = options.blocking;
  nccl::UniqueId id;
  std::memcpy(id.bytes, options.unique_id.data(), sizeof id.bytes);
  stream_ = device_->make_stream();  // also makes the device current, which the library takes
  return library_.CommInitRankConfig(&first_.handle, options.members, id, options.member, &wanted);
}

std::shared_ptr<CclCommunicator> CclCommunicator::open(const CclOptions& options, Deadline deadline,
                                                       LibraryLog& log, bool asks_to_connect) {
  std::shared_ptr<CclCommunicator> made(new CclCommunicator(options));
  const auto begin = [made, options] { return made->begin(options); };
  made->perform("ncclCommInitRankConfig", begin, options, deadline);
  const bool may_be_late = made->library_.version_number >= kConnectsAtFirstUse;
  try {
    made->add_blocking(options, deadline, asks_to_connect && may_be_late && log.silent());
  } catch (...) {
    made->abort();
    throw;
  }
  return made;
}

void CclCommunicator::add_blocking(const CclOptions& options, Deadline deadline, bool late) {
  if (!options.blocking) {
    const std::string connect = environment_variable("NCCL_RUNTIME_CONNECT").value_or("0");
    without_blocking_ =
        connect != "0" ? "NCCL_RUNTIME_CONNECT=" + connect : "HETCOMM_CCL=blocking=0";
  } else if (library_.CommSplit == nullptr) {
    without_blocking_ = "the library has no ncclCommSplit";
  } else {
    split_blocking(options, deadline, late);
  }
  if (!without_blocking_.empty()) return;
  guard_.emplace(call_bound_, [self = weak_from_this()] {
    const auto held = self.lock();
    if (!held) return;
    log(LogLevel::error,
        held->library_.version + ": a call has not returned for " +
            format_seconds(held->call_bound_) + "; the communicator is aborted",
        held->rank_);
    held->end(held->first_);  // the abort reaches the blocking side, which the call is still using
  });
}

// A member whose library connects late stays out of the split. So all members learn of it: the
// communicator of the others is too small.
void CclCommunicator::split_blocking(const CclOptions& options, Deadline deadline, bool late) {
  const auto begin = [self = shared_from_this(), options, late] {
    nccl::Config wanted = self->config(options);
    wanted.blocking = 1;
    return self->library_.CommSplit(self->first_.handle, late ? nccl::kNoColor : 0, options.member,
                                    &self->blocking_.handle, &wanted);
  };
  if (!perform("ncclCommSplit", begin, options, deadline)) {
    without_blocking_ = "the library refused ncclCommSplit";
    return;
  }
  int members = 0;
  if (blocking_.handle != nullptr) library_.CommCount(blocking_.handle, &members);
  if (members == options.members) return;
  if (blocking_.handle != nullptr) drop_blocking(deadline);
  without_blocking_ = std::string(late ? "somebody else called the library first in this process"
                                       : "another member's library was called before") +
                      ", so NCCL_RUNTIME_CONNECT came too late";
  if (!late) return;
  log(LogLevel::warning,
      library_.version +
          ": expected hetcomm to call the library first in this process; got one "
          "that read its variables before hetcomm set NCCL_RUNTIME_CONNECT=0; each "
          "call costs a thread; set the variable for the whole process, or make "
          "hetcomm's first group before other users of the library make theirs",
      rank_);
}

void CclCommunicator::drop_blocking(Deadline deadline) {
  auto end = [self = shared_from_this(), deadline] { self->finalize(self->blocking_, deadline); };
  if (!Detached(std::move(end)).wait(deadline)) {
    abort();
    throw Error(Status(Code::timeout,
                       library_.version + ": expected the end of an idle communicator within " +
                           format_seconds(deadline.timeout()) + "; it did not end",
                       rank_));
  }
  std::lock_guard lock(ending_);
  blocking_ = {};
}

bool CclCommunicator::perform(const char* function, std::function<nccl::Result()> begin,
                              const CclOptions& options, Deadline deadline) {
  const bool first = first_.handle == nullptr;  // there is nothing to abort until `begin` returns
  auto opening = std::make_shared<Opening>();
  // A non-blocking initialisation, too, first loads plug-ins and wakes the driver.
  Detached thread([self = shared_from_this(), opening, begin = std::move(begin)] {
    nccl::Result result = nccl::internal_error;
    Status status;
    try {
      result = begin();
    } catch (const Error& error) {
      status = error.status();
    }
    std::lock_guard lock(opening->mutex);
    opening->status = status;
    opening->result = result;
    opening->over = true;
    if (opening->abandoned) self->finish();
  });
  Status other_failure;
  auto ask = [&](std::chrono::nanoseconds bound) {
    if (options.failure) other_failure = options.failure(Deadline(bound));
  };
  bool returned = false;
  while (!returned && !deadline.passed() && other_failure.ok()) {
    returned = thread.wait(
        Deadline(std::min<std::chrono::nanoseconds>(deadline.left(), kFailureInterval)));
    if (!returned) ask(kFailureBound);
  }
  nccl::Result result = nccl::in_progress;
  {
    std::lock_guard lock(opening->mutex);
    returned |= opening->over;  // perhaps since the last wait
    opening->abandoned = !returned;
    if (returned) result = opening->result;
    if (!opening->status.ok() && !first) abort();
    check(opening->status);
  }
  const bool failed = result != nccl::in_progress && result != nccl::success;
  if (failed && !first && poll(first_) == nccl::success) return false;
  // NCCL 2.18 to 2.30 return success from ncclCommSplit when it has only begun.
  if (result == nccl::success) result = poll(first_);
  auto asked = Clock::now();
  for (Pause pause;
       returned && result == nccl::in_progress && !deadline.passed() && other_failure.ok();
       pause()) {
    result = poll(first_);
    if (Clock::now() - asked < kFailureInterval) continue;
    ask(kFailureBound);
    asked = Clock::now();
  }
  if (result == nccl::success) return true;
  const bool remote = result == nccl::remote_error, under_way = result == nccl::in_progress;
  std::string text = under_way ? missing_members(function, options, library_, deadline)
                               : library_.failure(function, result);
  const std::string lacking = lack_of_descriptors(text);
  // Another member may have given up first.
  const bool late = remote && lacking.empty() && deadline.left() < kReasonBound;
  if (remote && !late) ask(lacking.empty() ? kReasonBound : kFailureBound);
  if (late) {
    text = missing_members(function, options, library_, deadline);
  } else if (!lacking.empty()) {
    text = lacking;
  } else if (!under_way) {
    if (remote) text += "; one of the " + ranks_of(options) + ", or the network, has failed";
    text += std::string("; give all ranks the same ") + library_.vendor->ccl.name +
            " and a network that it can use (NCCL_DEBUG=INFO shows what it finds)";
  }
  const bool abortable = returned || !first;
  if (abortable) abort();
  if (!abortable || !aborted(Deadline(kAbortBound))) {
    text += "; it does not let itself be aborted either, so end this process soon";
  }
  check(other_failure);
  throw Error(Status(late || under_way ? Code::timeout : Code::vendor, text, rank_));
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
  auto end = [self = shared_from_this()] {
    self->drop_registrations();
    const Deadline none(kLongestTimeout);
    if (self->finalize(self->blocking_, none)) self->finalize(self->first_, none);
    self->finish();
  };
  try {
    return Detached(std::move(end)).wait(deadline);
  } catch (const Error& error) {
    log(LogLevel::error, error.what(), rank_);
    return false;
  }
}

// False if the side did not end in good order; true if there is no such side.
bool CclCommunicator::finalize(Side& side, Deadline deadline) {
  if (side.handle == nullptr) return true;
  nccl::Result result = library_.CommFinalize(side.handle);
  for (Pause pause(kEndPause); result == nccl::in_progress && !deadline.passed(); pause()) {
    result = poll(side);
  }
  if (result != nccl::success) return false;
  std::lock_guard lock(ending_);
  if (!side.ended) library_.CommDestroy(side.handle);
  side.ended = true;
  return true;
}

void CclCommunicator::end(Side& side) {
  std::lock_guard lock(ending_);
  if (side.handle != nullptr && !side.ended) library_.CommAbort(side.handle);
  side.ended = side.handle != nullptr;
}

// The first side ends first. Both sides share one flag for aborts, so calls of the blocking side
// have ended before that side is freed.
void CclCommunicator::finish() {
  end(first_);
  end(blocking_);
  std::lock_guard lock(ending_);
  try {
    if (stream_ != nullptr && !stream_released_) device_->destroy(stream_);
  } catch (const Error& error) {
    log(LogLevel::debug, error.what(), rank_);
  }
  stream_released_ = true;
}

}  // namespace hetcomm
