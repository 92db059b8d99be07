#include "comm/communicator.h"

#include <unistd.h>

#include "base/sha256.h"
#include "bootstrap/group.h"
#include "comm/process_exit.h"
#include "plan/message.h"
#include "plan/overlap.h"

namespace hetcomm {
namespace {

// Throws Error(invalid_argument) if a graph cannot capture the plan. By then the call has no number
// and nothing is sent, so the group goes on.
void check_capturable(const Plan& plan) {
  if (plan.steps.empty()) return;
  const Step& first = plan.steps[0];
  if (plan.steps.size() == 1 && !first.is_message() && !first.in_staging()) return;
  throw Error(Code::invalid_argument,
              describe(plan.spec) +
                  ": expected an operation inside one island of a native library while a graph is "
                  "being captured; got one of " +
                  std::to_string(plan.steps.size()) +
                  " steps, which the host moves; leave it out of the graph");
}

void check_residual(const Spec& spec, const Communicator::CallOptions& options) {
  if (spec.feedback == (options.residual != nullptr) || spec.count == 0) return;
  throw Error(Code::invalid_argument,
              describe(spec) + ": expected " +
                  (spec.feedback ? "a residual, because the call has feedback; got none"
                                 : "no residual without feedback; got one"));
}

}  // namespace

struct Communicator::SubmitLocks {         // in the order in which they are taken
  std::unique_lock<std::mutex> numbering;  // submit_mutex_, of collectives
  Health::Lock recording;                  // the last two only if the caller has them
  std::unique_lock<std::mutex> engine;
};

Communicator::Communicator(std::unique_ptr<Group> group)
    : group_(std::move(group)),
      timeout_(group_->timeout),
      process_(getpid()),
      topology_(group_->topology.get()) {
  process_exit::add(this);
}

Communicator::~Communicator() {
  process_exit::remove(this);
  leave();
  if (group_->device && !stuck_ && !mark_.inherited()) group_->device->trim();
}

int Communicator::rank() const { return group_->rank; }

int Communicator::size() const { return group_->size; }

SealedStore Communicator::sealed(Store& store) const {
  SealedStore sealed(store, group_->rank);
  sealed.use_group_key(group_->key);
  return sealed;
}

const Topology& Communicator::topology() const { return *topology_; }

std::string Communicator::key(const std::string& purpose) const {
  return hmac_sha256(group_->key, purpose);
}

const std::shared_ptr<Device>& Communicator::device() const { return group_->device; }

void Communicator::validate(const Spec& spec) {
  check_process();
  std::lock_guard lock(submit_mutex_);
  group_->planner->plan(spec, rank());
}

Work Communicator::submit(const Spec& spec, const void* input, void* output,
                          const CallOptions& options) {
  check_process();
  return submit_locked(spec, {input, output}, options, {std::unique_lock(submit_mutex_), {}, {}});
}

std::optional<Work> Communicator::try_submit(const Spec& spec, const void* input, void* output,
                                             const CallOptions& options) {
  check_process();
  if (group_->device) return std::nullopt;
  SubmitLocks locks{.numbering = std::unique_lock(submit_mutex_, std::try_to_lock)};
  if (!locks.numbering || !last_plan_ || last_plan_->spec != spec ||
      last_plan_->steps.size() != 1) {
    return std::nullopt;
  }
  if (Health* const health = group_->health.get()) {
    locks.recording = health->try_lock();
    if (!locks.recording || !health->leaves_out_lost_rails(left_out_, sequence_)) {
      return std::nullopt;
    }
  }
  locks.engine = group_->executor->try_lock();
  if (!locks.engine || group_->queue->busy()) return std::nullopt;
  return submit_locked(spec, {input, output}, options, std::move(locks));
}

Work Communicator::submit_locked(const Spec& spec, Run::Buffers buffers, const CallOptions& options,
                                 SubmitLocks locks) {
  const CallDescriptor call = make_descriptor(spec, sequence_, history_);
  std::shared_ptr<Run> run;
  for (bool recorded = false; !recorded;) try {
      if (!last_plan_ || last_plan_->spec != spec) take_plan(spec);
      check_residual(spec, options);
      check_apart(spec, rank(), size(), buffers.input, buffers.output);
      run = last_trial_ ? make_trial_run(buffers, {.call = call}, options)
                        : make_run(last_plan_, buffers, {.call = call}, options);
      recorded = !group_->health || group_->health->record(call, left_out_);
      if (!recorded) leave_out_lost_rails(options.timeout.value_or(timeout_));
    } catch (const Error& error) {  // the call has no number yet
      report_refusal(error.status());
      throw;
    }
  ++sequence_;
  history_ = hash(call);
  if (last_trial_) count_trial_call();
  if (locks.recording) locks.recording.unlock();
  return start(std::move(run), options, std::move(locks));
}

std::shared_ptr<Run> Communicator::make_run(std::shared_ptr<const Plan> plan, Run::Buffers buffers,
                                            const Operation& operation, const CallOptions& options,
                                            const Run::TrialCall& trial) {
  Device* const device = group_->device.get();
  const bool captured = device && options.stream && device->capturing(*options.stream);
  if (captured) check_capturable(*plan);
  if (captured && trial.plain) check_capturable(*trial.plain);
  auto run = make_shared_of_process<Run>(std::move(plan), buffers, operation,
                                         options.timeout.value_or(timeout_), group_->device);
  recorder_.add(*run);
  if (options.residual) run->set_residual(options.residual);
  if (trial.trial) run->set_trial_call(trial);
  if (DeviceRun* on_device = run->device()) {
    const DeviceKernels* const kernels = group_->queue->paths->streams()->kernels();
    on_device->prepare(run->plan(), kernels, run->residual());
    if (trial.plain) on_device->prepare(*trial.plain, kernels, nullptr);
    if (options.stream) check(on_device->await_stream(*options.stream, captured));
  }
  return run;
}

Work Communicator::start(std::shared_ptr<Run> run, const CallOptions& options, SubmitLocks locks) {
  Executor& executor = *group_->executor;
  auto completed = executor.submit(*group_->queue, run, options.will_wait, std::move(locks.engine));
  if (locks.numbering) locks.numbering.unlock();
  executor.announce(completed);
  if (run->captured()) executor.await_captured(*group_->queue, run);
  return Work(group_->executor, std::move(run));
}

void Communicator::report_refusal(const Status& why) {
  if (group_->health && !mark_.inherited()) group_->health->report_refusal(why);
}

Work Communicator::send_or_recv(Collective direction, Run::Buffers buffers, Dtype dtype,
                                int64_t count, int peer, uint32_t tag, const CallOptions& options) {
  check_process();
  if (peer < 0 || peer >= size() || peer == rank() || count < 0) {
    throw Error(Code::invalid_argument,
                std::string(name(direction)) + ": expected a rank from 0 to " +
                    std::to_string(size() - 1) + " other than this rank (" +
                    std::to_string(rank()) + "), got " + std::to_string(peer));
  }
  auto plan =
      std::make_shared<const Plan>(message_plan(topology(), rank(), direction, peer, dtype, count));
  return start(make_run(std::move(plan), buffers, {.user_tag = tag}, options), options, {});
}

Work Communicator::send(const void* data, Dtype dtype, int64_t count, int to, uint32_t tag,
                        const CallOptions& options) {
  return send_or_recv(Collective::send, {data, nullptr}, dtype, count, to, tag, options);
}

Work Communicator::recv(void* data, Dtype dtype, int64_t count, int from, uint32_t tag,
                        const CallOptions& options) {
  return send_or_recv(Collective::recv, {nullptr, data}, dtype, count, from, tag, options);
}

Work Communicator::recv_any(void* data, Dtype dtype, int64_t count, uint32_t tag,
                            const CallOptions& options) {
  check_process();
  if (group_->device) {
    throw Error(Code::invalid_argument,
                "recv from any rank: expected a rank whose buffers are host memory, got one on " +
                    group_->device->describe() + "; name the sender");
  }
  const Transports& transports = group_->executor->transports();
  if (transports.main() == nullptr) throw Error(transports.why_none());
  Plan unknown;
  unknown.spec = {.collective = Collective::recv, .dtype = dtype, .root = -1, .count = count};
  auto run = make_run(std::make_shared<const Plan>(std::move(unknown)), {nullptr, data},
                      {.user_tag = tag}, options);
  run->set_plan_for([topology = group_->topology, rank = rank(), dtype, count](int sender) {
    return std::make_shared<const Plan>(
        message_plan(*topology, rank, Collective::recv, sender, dtype, count));
  });
  return start(std::move(run), options, {});
}

bool Communicator::await_message(int from, uint32_t tag, const Deadline& deadline) {
  check_process();
  const uint64_t body = Paths::message_body(tag, 0);
  group_->executor->drain(
      [&] { return !group_->queue->failure.ok() || group_->queue->paths->arrived(from, body); },
      deadline);
  const auto held = group_->executor->lock();
  check(group_->queue->failure);
  return group_->queue->paths->arrived(from, body);
}

bool Communicator::wait_until_idle(const Deadline& deadline) {
  check_process();
  return group_->executor->drain([&] { return !group_->queue->busy(); }, deadline);
}

Status Communicator::failure() const {
  if (mark_.inherited()) return inherited_error();
  const auto held = group_->executor->lock();
  return group_->queue->failure;
}

Status Communicator::lost_among(const std::vector<int>& ranks) const {
  return group_->health ? group_->health->lost_among(ranks) : Status();
}

Status Communicator::inherited_error() const {
  return Status(Code::invalid_argument,
                "group \"" + group_->name + "\" belongs to process " + std::to_string(process_) +
                    ", of which this one, " + std::to_string(getpid()) +
                    ", is a child by fork(); use the group there, make another one here, or start "
                    "processes by spawn",
                rank());
}

void Communicator::abort(const std::string& reason) {
  if (mark_.inherited()) return;
  const Status why(Code::aborted,
                   "rank " + std::to_string(rank()) + " aborted the group: " + reason, rank(),
                   rank());
  if (group_->executor->fail(*group_->queue, why, kLockBound)) return;
  if (group_->health) group_->health->failed(why);  // tells the others, and tries again
}

std::string Communicator::path_to(int peer) const {
  check_process();
  if (peer < 0 || peer >= size()) {
    throw Error(Code::invalid_argument, "path_to: expected a rank from 0 to " +
                                            std::to_string(size() - 1) + "; got " +
                                            std::to_string(peer));
  }
  const auto held = group_->executor->lock();
  return group_->queue->paths->describe(peer);
}

void Communicator::begin_trace() {
  check_process();
  if (recorder_.begin()) return;
  throw Error(Code::invalid_argument,
              "trace: expected a group that is not being traced, got one that is; end that first");
}

std::vector<std::shared_ptr<const Trace>> Communicator::end_trace() {
  check_process();
  const auto held = group_->executor->lock();
  return recorder_.end();
}

Island& Communicator::island() const {
  check(group_->queue->failure);
  if (Island* island = group_->queue->paths->island()) return *island;
  throw Error(Code::invalid_argument,
              "rank " + std::to_string(rank()) +
                  ": expected an island with a native library, for registered buffers; got an "
                  "island of one rank; use the memory as it is");
}

// To map memory, the library may wait for the device, and the device for an operation of the group.
void Communicator::require_idle(const char* caller) const {
  if (!group_->queue->busy()) return;
  throw Error(Code::invalid_argument, std::string(caller) +
                                          ": expected no operation of the group under way, got "
                                          "some; wait for them first");
}

int64_t Communicator::direct_calls() const {
  check_process();
  const auto held = group_->executor->lock();
  const Island* island = group_->queue->paths->island();
  return island ? island->direct_calls() : 0;
}

void Communicator::register_buffer(void* pointer, size_t bytes) {
  check_process();
  const auto held = group_->executor->lock();
  require_idle("register_buffer");
  island().register_buffer(pointer, bytes);
}

void Communicator::deregister_buffer(void* pointer) {
  check_process();
  const auto held = group_->executor->lock();
  if (!group_->queue->failure.ok()) return;  // the engine has dropped all registrations
  require_idle("deregister_buffer");
  island().deregister_buffer(pointer);
}

}  // namespace hetcomm
