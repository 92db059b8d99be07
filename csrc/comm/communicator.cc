#include "comm/communicator.h"

#include <unistd.h>

#include "base/config.h"
#include "base/log.h"
#include "comm/process.h"
#include "plan/message.h"

namespace hetcomm {
namespace {

constexpr auto kLeaveBound = std::chrono::seconds(5);
// A native library's call is aborted after 30 s and returns soon after.
constexpr auto kLaunchBound = std::chrono::seconds(40);
// What a device has finished, and its caller seen in a stream, the host may not have seen yet.
constexpr auto kLastLook = std::chrono::milliseconds(100);

CallDescriptor descriptor(Collective collective, Dtype dtype, int64_t count) {
  CallDescriptor call;
  call.collective = static_cast<uint16_t>(collective);
  call.dtype = static_cast<uint8_t>(dtype);
  call.count = static_cast<uint64_t>(count);
  return call;
}

}  // namespace

Communicator::Communicator(Store& store, Options options)
    : options_(std::move(options)),
      timeout_(options_.timeout),
      executor_(options_.executor),
      process_(getpid()) {
  if (options_.size < 1 || options_.size > Paths::kMaxRanks || options_.rank < 0 ||
      options_.rank >= options_.size) {
    throw Error(Code::invalid_argument, "expected a rank from 0 to size - 1 and a size from 1 to " +
                                            std::to_string(Paths::kMaxRanks) + ", got rank " +
                                            std::to_string(options_.rank) + " and size " +
                                            std::to_string(options_.size));
  }
  if (executor_ && executor_->inherited()) {
    throw Error(Code::invalid_argument,
                "expected an executor of this process, got one of the process that forked it; make "
                "one here");
  }
  try {
    set_up(store, Deadline(options_.timeout));
  } catch (...) {
    if (queue_->paths) {
      const auto held = executor_->lock();
      queue_->paths->drop_links();  // that the transport may be about to open
    }
    throw;
  }
  process::enter(this);
}

Communicator::~Communicator() {
  process::exit(this);
  leave();
  if (device_ && !mark_.inherited()) device_->trim();
}

std::shared_ptr<Run> Communicator::make_run(std::shared_ptr<const Plan> plan, Run::Buffers buffers,
                                            const CallDescriptor& call, uint32_t tag,
                                            const CallOptions& options, bool recorded) {
  auto run = make_shared_of_process<Run>(std::move(plan), buffers, call, tag,
                                         options.timeout.value_or(timeout_), device_);
  if (tracing_.load(std::memory_order_relaxed)) [[unlikely]] {
    std::lock_guard lock(trace_mutex_);
    traces_.push_back(run->trace());
  }
  if (device_) run->prepare(queue_->paths->streams()->kernels());
  if (device_ && options.stream) check(run->follow(*options.stream, recorded));
  return run;
}

// Whether the caller's stream is being recorded into a graph. Throws if the plan cannot be: before
// anything is numbered or sent, so that the group goes on.
bool Communicator::recorded(const Plan& plan, const CallOptions& options) const {
  if (!device_ || !options.stream || !device_->capturing(*options.stream)) return false;
  if (plan.steps.empty()) return true;
  const Step& first = plan.steps[0];
  const bool at_home = first.kind == StepKind::copy && first.target.space != Space::staging &&
                       first.sources[0].space != Space::staging;
  if (plan.steps.size() == 1 && (at_home || is_island(first.kind))) return true;
  throw Error(Code::invalid_argument,
              describe(plan.spec) +
                  ": expected an operation inside one island of a native library while a graph is "
                  "being recorded; got one of " +
                  std::to_string(plan.steps.size()) +
                  " steps, which the host moves; leave it out of the graph");
}

Work Communicator::submit(const Spec& spec, const void* input, void* output,
                          const CallOptions& options) {
  check_process();
  return submit_locked(spec, {input, output}, options, {std::unique_lock(submit_mutex_), {}, {}});
}

std::optional<Work> Communicator::submit_at_once(const Spec& spec, const void* input, void* output,
                                                 const CallOptions& options) {
  check_process();
  if (device_) return std::nullopt;
  SubmitLocks locks{.numbering = std::unique_lock(submit_mutex_, std::try_to_lock)};
  if (!locks.numbering || !last_plan_ || last_plan_->spec != spec ||
      last_plan_->steps.size() != 1) {
    return std::nullopt;
  }
  if (health_) locks.recording = health_->try_lock();
  if (health_ && !locks.recording) return std::nullopt;
  locks.engine = executor_->try_lock();
  if (!locks.engine || queue_->busy()) return std::nullopt;
  return submit_locked(spec, {input, output}, options, std::move(locks));
}

Work Communicator::submit_locked(const Spec& spec, Run::Buffers buffers, const CallOptions& options,
                                 SubmitLocks locks) {
  CallDescriptor call = descriptor(spec.collective, spec.dtype, spec.count);
  call.root = static_cast<uint32_t>(spec.root);
  call.op = static_cast<uint8_t>(spec.op);
  call.factor = spec.factor;
  call.sequence = sequence_;
  call.history = history_;
  std::shared_ptr<Run> run;
  try {
    if (!last_plan_ || last_plan_->spec != spec) last_plan_ = planner_->plan(spec, rank());
    const bool into_graph = recorded(*last_plan_, options);
    run = make_run(last_plan_, buffers, call, 0, options, into_graph);
  } catch (const Error& error) {  // it has no number yet
    refused(error.status());
    throw;
  }
  ++sequence_;
  history_ = hash(call);
  if (health_) health_->record(call);
  if (locks.recording) locks.recording.unlock();
  auto completed = executor_->submit(*queue_, run, options.will_wait, std::move(locks.engine));
  locks.numbering.unlock();
  return submitted(std::move(run), completed);
}

Work Communicator::submitted(std::shared_ptr<Run> run,
                             std::vector<std::shared_ptr<Run>>& completed) {
  executor_->announce(completed);
  if (run->recorded()) executor_->await_recorded(*queue_, run);
  return Work(executor_, std::move(run));
}

void Communicator::refused(const Status& why) {
  if (health_ && !mark_.inherited()) health_->refused(why);
}

Work Communicator::begin(std::shared_ptr<Run> run, const CallOptions& options) {
  auto completed = executor_->submit(*queue_, run, options.will_wait);
  return submitted(std::move(run), completed);
}

Work Communicator::message(Collective direction, const void* input, void* output, Dtype dtype,
                           int64_t count, int peer, uint32_t tag, const CallOptions& options) {
  check_process();
  if (peer < 0 || peer >= size() || peer == rank() || count < 0) {
    throw Error(Code::invalid_argument,
                std::string(name(direction)) + ": expected a rank from 0 to " +
                    std::to_string(size() - 1) + " other than this rank (" +
                    std::to_string(rank()) + "), got " + std::to_string(peer));
  }
  auto plan =
      std::make_shared<const Plan>(message_plan(*topology_, rank(), direction, peer, dtype, count));
  const bool into_graph = recorded(*plan, options);
  auto run = make_run(std::move(plan), {input, output}, descriptor(direction, dtype, count), tag,
                      options, into_graph);
  return begin(std::move(run), options);
}

Work Communicator::send(const void* data, Dtype dtype, int64_t count, int to, uint32_t tag,
                        const CallOptions& options) {
  return message(Collective::send, data, nullptr, dtype, count, to, tag, options);
}

Work Communicator::recv(void* data, Dtype dtype, int64_t count, int from, uint32_t tag,
                        const CallOptions& options) {
  return message(Collective::recv, nullptr, data, dtype, count, from, tag, options);
}

Work Communicator::recv_any(void* data, Dtype dtype, int64_t count, uint32_t tag,
                            const CallOptions& options) {
  check_process();
  if (device_) {
    throw Error(Code::invalid_argument,
                "recv from any rank: expected a rank whose buffers are host memory, got one on " +
                    device_->describe() + "; name the sender");
  }
  const Transports& transports = executor_->transports();
  if (transports.main() == nullptr) throw Error(transports.why_none());
  Plan unknown;
  unknown.spec = {.collective = Collective::recv, .dtype = dtype, .root = -1, .count = count};
  auto run = make_run(std::make_shared<const Plan>(std::move(unknown)), {nullptr, data},
                      descriptor(Collective::recv, dtype, count), tag, options, false);
  run->await_sender([topology = topology_, rank = rank(), dtype, count](int sender) {
    return std::make_shared<const Plan>(
        message_plan(*topology, rank, Collective::recv, sender, dtype, count));
  });
  return begin(std::move(run), options);
}

bool Communicator::await_message(int from, uint32_t tag, const Deadline& deadline) {
  check_process();
  const uint64_t body = Paths::message_body(tag, 0);
  executor_->drain([&] { return !queue_->failure.ok() || queue_->paths->arrived(from, body); },
                   deadline);
  const auto held = executor_->lock();
  check(queue_->failure);
  return queue_->paths->arrived(from, body);
}

bool Communicator::wait_until_idle(const Deadline& deadline) {
  check_process();
  return executor_->drain([&] { return !queue_->busy(); }, deadline);
}

Status Communicator::failure() const {
  if (mark_.inherited()) return of_another_process();
  const auto held = executor_->lock();
  return queue_->failure;
}

Status Communicator::of_another_process() const {
  return Status(Code::invalid_argument,
                "group \"" + options_.name + "\" belongs to process " + std::to_string(process_) +
                    ", of which this one, " + std::to_string(getpid()) +
                    ", is a child by fork(); use the group there, make another one here, or start "
                    "processes by spawn",
                rank());
}

void Communicator::abort(const std::string& reason) {
  if (mark_.inherited()) return;
  executor_->fail(
      *queue_,
      Status(Code::aborted, "rank " + std::to_string(rank()) + " aborted the group: " + reason,
             rank(), rank()));
}

std::string Communicator::path_to(int peer) const {
  check_process();
  const auto held = executor_->lock();
  return queue_->paths->describe(peer);
}

void Communicator::begin_trace() {
  check_process();
  if (!tracing_.exchange(true)) return;
  throw Error(Code::invalid_argument,
              "trace: expected a group that is not being traced, got one that is; end that first");
}

std::vector<std::shared_ptr<const Trace>> Communicator::end_trace() {
  check_process();
  tracing_ = false;
  std::vector<std::shared_ptr<const Trace>> traces;
  {
    std::lock_guard lock(trace_mutex_);
    traces.swap(traces_);
  }
  const auto held = executor_->lock();
  std::erase_if(traces, [](const auto& trace) { return trace->ended < 0; });
  return traces;
}

Island& Communicator::engine() const {
  check(queue_->failure);
  if (Island* island = queue_->paths->island()) return *island;
  throw Error(Code::invalid_argument,
              "rank " + std::to_string(rank()) +
                  ": expected an island with a native library, for registered buffers; got an "
                  "island of one rank; use the memory as it is");
}

// The library maps memory, for which it may wait for the device, which may wait for a call of ours.
void Communicator::check_idle(const char* what) const {
  if (!queue_->busy()) return;
  throw Error(Code::invalid_argument, std::string(what) +
                                          ": expected no operation of the group under way, got "
                                          "some; wait for them first");
}

int64_t Communicator::direct_calls() const {
  check_process();
  const auto held = executor_->lock();
  const Island* island = queue_->paths->island();
  return island ? island->direct_calls() : 0;
}

void Communicator::register_buffer(void* pointer, size_t bytes) {
  check_process();
  const auto held = executor_->lock();
  check_idle("register_buffer");
  engine().register_buffer(pointer, bytes);
}

void Communicator::deregister_buffer(void* pointer) {
  check_process();
  const auto held = executor_->lock();
  if (!queue_->failure.ok()) return;  // registrations went with the engine's communicators
  check_idle("deregister_buffer");
  engine().deregister_buffer(pointer);
}

void Communicator::leave() {
  if (mark_.inherited()) {
    // A forked child shares descriptors with its parent, who goes on: let go without a word.
    new std::shared_ptr<RunQueue>(queue_);
    return;
  }
  std::lock_guard lock(leave_mutex_);
  if (left_) return;
  left_ = true;
  const Deadline deadline(kLeaveBound);
  const Status used_afterwards(Code::aborted,
                               "the group was destroyed on rank " + std::to_string(rank()) +
                                   " while operations were under way, or used afterwards",
                               rank());
  const bool busy = !wait_until_idle(Deadline(kLastLook)) && failure().ok();
  if (busy) executor_->fail(*queue_, used_afterwards);
  if (health_) {
    health_->poll();  // tells the others of a failure, if any
    health_->say_goodbye(deadline);
  }
  Paths& paths = *queue_->paths;
  {
    const auto held = executor_->lock();
    paths.close(queue_->failure.ok());
    if (queue_->failure.ok()) queue_->failure = used_afterwards;
  }
  const bool drained =
      executor_->drain([&] { return paths.closed() && queue_->active.empty(); }, deadline);
  const bool returned =
      executor_->drain([&] { return !queue_->launching; }, Deadline(kLaunchBound));
  bool kept;
  {
    const auto held = executor_->lock();
    if (returned) {
      std::erase_if(queue_->unsettled, [](const std::shared_ptr<Run>& run) {
        run->settle();
        return !run->unsettled();
      });
    }
    kept = !drained || !returned || !queue_->unsettled.empty();
    if (!kept) paths.drop_links();
  }
  if (kept) {
    log(LogLevel::info,
        "group \"" + options_.name +
            "\" left with operations that a peer or a device never completed; their memory is kept "
            "until the process ends",
        rank());
    new std::shared_ptr<RunQueue>(queue_);
  }
  if (health_) {
    executor_->remove(health_.get());
    health_->end();
  }
  rail_listeners_.reset();
  if (returned) executor_->detach(queue_);  // else the thread inside the library still needs it
}

}  // namespace hetcomm
