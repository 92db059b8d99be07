#include "island/ccl/ccl.h"

#include <sched.h>

#include "base/config.h"
#include "base/fork.h"
#include "base/log.h"
#include "device/device.h"
#include "island/ccl/communicator.h"
#include "island/ccl/library_log.h"
#include "island/ccl/lowering.h"

namespace hetcomm {
namespace {

// How many calls may be in the stream at a time.
constexpr int kLanes = 64;
constexpr auto kLaunchBound = std::chrono::seconds(30);
constexpr auto kAbortBound = std::chrono::seconds(3);
// Closing needs the other members of the host, which may leave the group much later. So a rank
// waits for the library to give back its memory only while members leave together.
constexpr auto kCloseBound = std::chrono::milliseconds(500);
// The library notices first that a neighbour has ended. Health tells which rank within this time,
// also of an unreachable one.
constexpr auto kReasonBound = std::chrono::seconds(3);

class CclIsland final : public Island {
 public:
  CclIsland(CclOptions options, std::shared_ptr<CclCommunicator> communicator,
            LibraryLog::Network network)
      : options_(std::move(options)),
        communicator_(std::move(communicator)),
        lanes_(kLanes),
        network_(std::move(network)) {
    options_.failure = nullptr;  // of the set-up
    for (Lane& lane : lanes_) lane.event = communicator_->device().make_event();
  }

  ~CclIsland() override {
    if (mark_.inherited()) {  // a forked child has none of these threads, so it frees nothing
      new std::shared_ptr<CclCommunicator>(communicator_);
      return;
    }
    for (const Lane& lane : lanes_) {
      if (lane.under_way()) stop();
    }
    const CclLibrary& library = communicator_->library();
    if (stopped_ && !communicator_->aborted(Deadline(kAbortBound))) {
      log(LogLevel::warning,
          library.version +
              ": ncclCommAbort has not returned; a thread stays behind, and memory of the last "
              "calls may still be written",
          communicator_->rank());
      return;  // events and stream stay with the library
    }
    if (!stopped_ && !communicator_->close(Deadline(kCloseBound))) {
      log(LogLevel::info,
          library.version +
              ": a thread keeps the communicator until the other ranks of the island leave, too",
          communicator_->rank());
    }
    for (const Lane& lane : lanes_) communicator_->device().destroy_event(lane.event);
  }

  std::string describe() const override {
    const std::string& slower = communicator_->without_blocking();
    return communicator_->library().version + ", " + std::to_string(options_.members) +
           (options_.members == 1 ? " rank" : " ranks") +
           (slower.empty() ? "" : ", each call costs a thread (" + slower + ")") +
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

  void register_buffer(void* pointer, size_t bytes) override {
    check(failure_);
    communicator_->register_buffer(pointer, bytes);
  }
  void deregister_buffer(void* pointer) override {
    if (failure_.ok()) communicator_->deregister_buffer(pointer);  // else none is left
  }
  void compare_network() const;

 private:
  // launching: not yet in the stream; ending: failed, and a better reason may still come.
  enum class Phase : uint8_t { idle, launching, running, ending, over };

  struct Lane {
    Event event = nullptr;
    CallDescriptor descriptor;
    bool captured = false;
    Phase phase = Phase::idle;
    Status outcome;

    bool under_way() const { return phase == Phase::launching || phase == Phase::running; }
  };

  Status copy(const std::vector<nccl::Call>& calls);
  void launched(Lane& lane);
  void await_launch(Lane& lane);
  void fail(Lane& lane, const Status& status);
  void fail(Lane& lane, const std::string& function, nccl::Result result);
  void stop();

  CclOptions options_;
  const ProcessMark mark_;
  std::shared_ptr<CclCommunicator> communicator_;
  std::vector<Lane> lanes_;
  const LibraryLog::Network network_;
  Status failure_;                // of the island, once it is unusable
  Clock::time_point reason_due_;  // until then a better reason than failure_ may come
  bool stopped_ = false;
};

// Warns if the library took another network than set-up asked for: most of the speed may be lost.
void CclIsland::compare_network() const {
  const auto devices = options_.environment.find("NCCL_IB_HCA");
  const std::string missing = network_.lacks(
      options_.network, devices == options_.environment.end() ? "" : devices->second);
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
  lane.captured = call.captured;
  lane.outcome = failure_;
  lane.phase = failure_.ok() ? Phase::over : Phase::ending;
  if (!failure_.ok()) return;
  if (call.reduces && !ccl_reduces(call.dtype, call.op)) {
    lane.outcome =
        Status(Code::invalid_argument,
               communicator_->library().version + ": expected a reduction that it has; got " +
                   name(call.op) + " of " + name(call.dtype) +
                   "; convert to a dtype that it has, or reduce on ranks with HETCOMM_VENDOR=cpu",
               communicator_->rank());
    return;
  }
  std::vector<nccl::Call> calls = nccl::lower(call, options_.member, options_.members);
  if (calls.empty()) return;
  if (Status status = copy(calls); !status) return fail(lane, status);
  std::erase_if(calls, [](const nccl::Call& one) { return one.function == nccl::Function::copy; });
  if (calls.empty()) return launched(lane);
  std::string function;
  const std::optional<nccl::Factor> factor = nccl::factor_of(call);
  const nccl::Result result = factor ? communicator_->issue(calls, *factor, function)
                                     : communicator_->issue(calls, function);
  if (result == nccl::success) {
    launched(lane);
  } else if (result == nccl::in_progress) {
    lane.phase = Phase::launching;
    if (call.captured) await_launch(lane);
  } else {
    fail(lane, function, result);
  }
}

// Waits until the call is in the stream: the caller captures its next work behind the call.
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
                        ": expected a call to be captured into the graph within 30 s; it was not",
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
  if (lane.under_way() && !failure_.ok()) {  // another lane's call failed
    lane.outcome = failure_;
    lane.phase = Phase::ending;
  } else if (lane.under_way()) {
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
    if (!lane.captured && !communicator_->device().passed(lane.event, passed))
      return Progress::waiting;
    if (passed) {
      lane.phase = Phase::over;
    } else {
      fail(lane, passed);
    }
  }
  if (lane.phase == Phase::ending) {
    if (Clock::now() < reason_due_) return Progress::waiting;
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
  const bool overdue = communicator_->overdue();
  const CclLibrary& library = communicator_->library();
  const std::string what = overdue ? library.version + ": " + function + " did not return within " +
                                         format_seconds(options_.call_bound)
                                   : library.failure(function, result);
  const std::string text =
      "rank " + std::to_string(communicator_->rank()) + " on " + host_name() + ": " + what +
      ", in " + options_.describe_call(lane.descriptor) +
      (overdue ? "; see that all members make the same calls, or set HETCOMM_CCL=blocking=0 on "
                 "all, which waits for them in the background"
               : "; NCCL_DEBUG=WARN shows more; make a new process group");
  fail(lane, Status(overdue ? Code::timeout : Code::vendor, text, communicator_->rank()));
  if (result != nccl::remote_error) return;
  reason_due_ = Clock::now() + kReasonBound;
  lane.phase = Phase::ending;
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

std::unique_ptr<Island> open_ccl_island(const CclOptions& options, Deadline deadline) {
  validate(options);
  set_ccl_environment(options.environment, options.device->vendor());
  const bool asks = ask_ccl_to_connect();  // on every member: set-up hangs if only some connect
  LibraryLog listening;
  auto communicator = CclCommunicator::open(options, deadline, listening, asks);
  std::unique_ptr<CclIsland> island;
  try {
    island = std::make_unique<CclIsland>(options, communicator, listening.network());
  } catch (...) {
    communicator->abort();
    throw;
  }
  island->compare_network();
  return island;
}

}  // namespace hetcomm
