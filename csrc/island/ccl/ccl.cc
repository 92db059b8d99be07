#include "island/ccl/ccl.h"

#include <sched.h>
#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <mutex>
#include <sstream>

#include "base/config.h"
#include "base/log.h"
#include "device/device.h"
#include "island/ccl/communicator.h"
#include "island/ccl/detached.h"
#include "island/ccl/library.h"
#include "island/ccl/library_log.h"
#include "island/ccl/lowering.h"

namespace hetcomm {
namespace {

// How many calls may be in the stream at a time.
constexpr int kLanes = 64;
constexpr auto kIdBound = std::chrono::seconds(30);
constexpr auto kLaunchBound = std::chrono::seconds(30);
constexpr auto kEndBound = std::chrono::seconds(3);  // of giving up and of closing
// A neighbour's end shows in the library first; who it was is told elsewhere within this time.
constexpr auto kReasonBound = std::chrono::seconds(2);

void set(const CclEnvironment& environment, const Vendor& vendor) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  for (const auto& [variable, value] : environment) {
    const char* present = std::getenv(variable.c_str());
    if (present == nullptr) {
      setenv(variable.c_str(), value.c_str(), 0);
    } else if (present != value) {
      log(LogLevel::warning, std::string(vendor.ccl) + ": " + variable + "=" + present +
                                 " is set and stays; the facts of all ranks suggest " + value);
    }
  }
}

// Whether "[0]mlx5_1:1/RoCE [1]mlx5_2:1/RoCE" has a device, which may be part of "mlx5_1+mlx5_2".
bool lists(const std::string& devices, const std::string& device) {
  for (size_t at = 0; (at = devices.find(device, at)) != std::string::npos; ++at) {
    const char before = at == 0 ? ' ' : devices[at - 1];
    const char after = at + device.size() < devices.size() ? devices[at + device.size()] : ' ';
    if (!std::isalnum(before) && !std::isalnum(after) && before != '_' && after != '_') return true;
  }
  return false;
}

class CclIsland final : public Island {
 public:
  CclIsland(const CclOptions& options, LibraryLog& listening, Deadline deadline)
      : member_(options.member),
        members_(options.members),
        describe_call_(options.describe_call),
        communicator_(CclCommunicator::open(options, deadline)),
        lanes_(kLanes),
        network_(listening.network()) {
    for (Lane& lane : lanes_) lane.event = communicator_->device().make_event();
    compare_network(options);
  }

  ~CclIsland() override {
    if (getpid() != process_) return;  // a forked child has none of the library's threads
    for (const Lane& lane : lanes_) {
      if (lane.phase == Phase::launching || lane.phase == Phase::running) stop();
    }
    if (!(stopped_ ? communicator_->aborted(Deadline(kEndBound))
                   : communicator_->close(Deadline(kEndBound)))) {
      log(LogLevel::warning,
          communicator_->library().version + ": " +
              (stopped_ ? "ncclCommAbort has not returned" : "does not end its communicator") +
              "; a thread stays behind, and memory of the last calls may still be written",
          communicator_->rank());
      return;  // events and stream stay with the library
    }
    for (const Lane& lane : lanes_) communicator_->device().destroy_event(lane.event);
  }

  std::string describe() const override {
    return communicator_->library().version + ", " + std::to_string(members_) +
           (members_ == 1 ? " rank" : " ranks") +
           (network_.name.empty() ? "" : ", network " + network_.name) +
           (network_.devices.empty() ? "" : " " + network_.devices);
  }
  int lanes() const override { return kLanes; }
  Stream stream() const override { return communicator_->stream(); }
  Event event(int lane) const override {
    return lanes_[lane].phase == Phase::running ? lanes_[lane].event : nullptr;
  }
  void set_sleeping(bool) override {}

  void start(int lane, const IslandCall& call) override;
  Progress progress(int lane, Status& status) override;
  void abandon(int lane) override;
  bool released() const override { return !stopped_ || communicator_->aborted(Deadline({})); }

 private:
  // launching: not yet in the stream; ending: the failure is told when the reason may have come.
  enum class Phase : uint8_t { idle, launching, running, ending, over };

  struct Lane {
    Event event = nullptr;
    CallDescriptor descriptor;
    bool recorded = false;
    Phase phase = Phase::idle;
    Status outcome;
    Clock::time_point failed_at;
  };

  void compare_network(const CclOptions& options) const;
  Status copy(const std::vector<nccl::Call>& calls);
  void launched(Lane& lane);
  void await_launch(Lane& lane);
  void fail(Lane& lane, const Status& status);
  void fail(Lane& lane, const std::string& function, nccl::Result result);
  void stop();

  const int member_, members_;
  const std::function<std::string(const CallDescriptor&)> describe_call_;
  const pid_t process_ = getpid();
  std::shared_ptr<CclCommunicator> communicator_;
  std::vector<Lane> lanes_;
  const LibraryLog::Network network_;
  Status failure_;  // of the island, once it is unusable
  bool stopped_ = false;
};

// The library is free to do otherwise than it was told, which may cost most of the speed.
void CclIsland::compare_network(const CclOptions& options) const {
  std::string missing;
  if (!options.network.empty() && !network_.name.empty() && options.network != network_.name) {
    missing = options.network;
  } else if (auto named = options.environment.find("NCCL_IB_HCA");
             named != options.environment.end() && network_.name == "IB") {
    std::istringstream list(named->second.substr(named->second.starts_with('=') ? 1 : 0));
    for (std::string device; std::getline(list, device, ',');) {
      if (!lists(network_.devices, device)) missing += (missing.empty() ? "" : ", ") + device;
    }
  }
  if (missing.empty()) return;
  log(LogLevel::warning,
      communicator_->library().version + ": expected it to use " + missing + "; it took network " +
          network_.name + " " + network_.devices +
          ", which may be much slower; NCCL_DEBUG=INFO shows why",
      communicator_->rank());
}

void CclIsland::start(int index, const IslandCall& call) {
  Lane& lane = lanes_[index];
  lane.descriptor = call.descriptor;
  lane.recorded = call.recorded;
  lane.outcome = failure_;
  lane.phase = Phase::over;
  if (!failure_.ok()) return;
  const bool reduces =
      call.kind == IslandKind::all_reduce || call.kind == IslandKind::reduce_scatter;
  if (reduces && !ccl_reduces(call.dtype, call.op)) {
    lane.outcome =
        Status(Code::invalid_argument,
               communicator_->library().version + ": expected a reduction that it has; got " +
                   name(call.op) + " of " + name(call.dtype) +
                   "; convert to int32 or int64, or reduce on ranks with HETCOMM_VENDOR=cpu",
               communicator_->rank());
    return;
  }
  std::vector<nccl::Call> calls = nccl::lower(call, member_, members_);
  if (calls.empty()) return;
  if (Status status = copy(calls); !status) return fail(lane, status);
  std::erase_if(calls, [](const nccl::Call& one) { return one.function == nccl::Function::copy; });
  if (calls.empty()) return launched(lane);
  std::string function;
  const nccl::Result result = communicator_->issue(calls, function);
  if (result == nccl::success) {
    launched(lane);
  } else if (result == nccl::in_progress) {
    lane.phase = Phase::launching;
    if (call.recorded) await_launch(lane);
  } else {
    fail(lane, function, result);
  }
}

// What the caller records next must find the call in the stream.
void CclIsland::await_launch(Lane& lane) {
  const Deadline deadline(kLaunchBound);
  nccl::Result state = communicator_->state();
  for (; state == nccl::in_progress && !deadline.passed(); state = communicator_->state()) {
    sched_yield();
  }
  if (state == nccl::success) return launched(lane);
  if (state != nccl::in_progress) return fail(lane, "asynchronous error", state);
  fail(lane, Status(Code::timeout,
                    communicator_->library().version +
                        ": expected a call to be recorded into the graph within 30 s; it was not",
                    communicator_->rank()));
}

Status CclIsland::copy(const std::vector<nccl::Call>& calls) {
  for (const nccl::Call& one : calls) {
    if (one.function != nccl::Function::copy) continue;
    Status status =
        communicator_->device().copy(one.target, one.source, one.count, communicator_->stream());
    if (!status) return status;
  }
  return {};
}

void CclIsland::launched(Lane& lane) {
  lane.phase = Phase::running;
  if (Status status = communicator_->device().record(lane.event, communicator_->stream());
      !status) {
    fail(lane, status);
  }
}

Island::Progress CclIsland::progress(int index, Status& status) {
  Lane& lane = lanes_[index];
  const bool under_way = lane.phase == Phase::launching || lane.phase == Phase::running;
  if (under_way && !failure_.ok()) {  // another lane's call failed
    lane.outcome = failure_;
    lane.phase = Phase::over;
  }
  if (lane.phase == Phase::launching || lane.phase == Phase::running) {
    const nccl::Result state = communicator_->state();
    if (state != nccl::success && state != nccl::in_progress) {
      fail(lane, "asynchronous error", state);
    } else if (lane.phase == Phase::launching) {
      if (state == nccl::in_progress) return Progress::waiting;
      launched(lane);
      if (lane.phase == Phase::running) return Progress::advanced;
    }
  }
  if (lane.phase == Phase::running) {
    Status passed;
    if (!lane.recorded && !communicator_->device().passed(lane.event, passed))
      return Progress::waiting;
    if (passed) {
      lane.phase = Phase::over;
    } else {
      fail(lane, passed);
    }
  }
  if (lane.phase == Phase::ending) {
    if (Clock::now() - lane.failed_at < kReasonBound) return Progress::waiting;
    lane.phase = Phase::over;
  }
  status = lane.outcome;
  lane.phase = Phase::idle;
  return Progress::done;
}

void CclIsland::fail(Lane& lane, const Status& status) {
  lane.outcome = failure_ = status;
  lane.phase = Phase::over;
  stop();
}

void CclIsland::fail(Lane& lane, const std::string& function, nccl::Result result) {
  const std::string text = "rank " + std::to_string(communicator_->rank()) + " on " + host_name() +
                           ": " + communicator_->failure(function, result) + ", in " +
                           (describe_call_ ? describe_call_(lane.descriptor) : "a collective") +
                           "; NCCL_DEBUG=WARN shows more; make a new process group";
  fail(lane, Status(Code::vendor, text, communicator_->rank()));
  lane.failed_at = Clock::now();
  if (result == nccl::remote_error) lane.phase = Phase::ending;
}

void CclIsland::stop() {
  if (stopped_) return;
  stopped_ = true;
  communicator_->abort();
}

void CclIsland::abandon(int) {
  for (Lane& lane : lanes_) lane.phase = Phase::idle;
  if (failure_.ok()) {
    failure_ = Status(Code::aborted,
                      communicator_->library().version +
                          ": its communicator was given up; make a new process group",
                      communicator_->rank());
  }
  stop();
}

void validate(const CclOptions& options) {
  const bool valid =
      options.device && options.members >= 1 && options.member >= 0 &&
      options.member < options.members && options.unique_id.size() == sizeof(nccl::UniqueId) &&
      (options.ranks.empty() || options.ranks.size() == static_cast<size_t>(options.members));
  if (valid) return;
  throw Error(Code::invalid_argument,
              "native island: expected a device, a member of 0 to members - 1, a rank for each "
              "member and an id of " +
                  std::to_string(sizeof(nccl::UniqueId)) + " bytes; got member " +
                  std::to_string(options.member) + " of " + std::to_string(options.members) + ", " +
                  std::to_string(options.ranks.size()) + " ranks and an id of " +
                  std::to_string(options.unique_id.size()) + " bytes");
}

}  // namespace

std::string make_ccl_id(const Vendor& vendor, const CclEnvironment& environment) {
  const CclLibrary& library = ccl_library(vendor);
  set(environment, vendor);
  LibraryLog listening;  // this may be the library's first call
  struct Made {
    nccl::UniqueId id;
    nccl::Result result;
    std::string text;
  };
  auto made = std::make_shared<Made>();
  Detached thread([&library, made] {  // listens on a network, which plug-ins may be needed for
    made->result = library.GetUniqueId(&made->id);
    if (made->result != nccl::success) {
      made->text = library.failure("ncclGetUniqueId", made->result);
    }
  });
  if (!thread.wait(Deadline(kIdBound))) {
    throw Error(Code::timeout, library.version +
                                   ": expected ncclGetUniqueId to return within 30 s; "
                                   "NCCL_DEBUG=INFO shows what it waits for");
  }
  if (made->result != nccl::success) {
    throw Error(Code::vendor,
                made->text + "; NCCL_SOCKET_IFNAME names the interface on which members meet");
  }
  return std::string(made->id.bytes, sizeof made->id.bytes);
}

std::unique_ptr<Island> open_ccl_island(const CclOptions& options, Deadline deadline) {
  validate(options);
  set(options.environment, options.device->vendor());
  LibraryLog listening;
  return std::make_unique<CclIsland>(options, listening, deadline);
}

std::string ccl_version(const Vendor& vendor) {
  const CclLibrary& library = ccl_library(vendor);
  return library.version + " (" + library.path + ")";
}

}  // namespace hetcomm
