#include "exec/run.h"

#include <utility>

#include "exec/local_steps.h"

namespace hetcomm {
namespace {

// When a neighbour abandons an operation or a link breaks, the cause arrives over the control
// connections. After this time the run fails without the cause. A rank counts as unreachable after
// 2 s (HETCOMM_PEER_TIMEOUT); grace and roll call then take up to 2 s.
constexpr auto kCauseBound = std::chrono::seconds(6);
// Ranks that disagree tell each other their calls. After this time the run fails without the calls
// of other ranks.
constexpr auto kDisputeBound = std::chrono::seconds(2);

// A copy of so many bytes into a socket takes longer than the progress thread takes to wake up.
constexpr int64_t kSlowToStart = 128 << 10;

// A failed operation waits this long for its buffers to be released.
constexpr auto kReleaseBound = std::chrono::milliseconds(250);

// glibc caches freed blocks of up to 1,032 bytes for each thread. Each call makes a run.
static_assert(sizeof(Run) <= 1000, "a larger run makes each small call 50 ns slower");

}  // namespace

Run::Run(std::shared_ptr<const Plan> plan, Buffers buffers, Operation operation,
         std::chrono::nanoseconds timeout, std::shared_ptr<Device> device)
    : plan_(std::move(plan)), operation_(operation), timeout_(timeout) {
  memory_.set(Space::input, const_cast<void*>(buffers.input));
  memory_.set(Space::output, buffers.output);
  if (device) device_ = std::make_unique<DeviceRun>(std::move(device));
}

void Run::set_residual(std::shared_ptr<Residual> residual) {
  residual_ = std::move(residual);
  if (!device_) memory_.set(Space::residual, residual_->on_host());
}

Run::~Run() {
  if (device_ && !released()) device_->abandon_memory();
}

std::shared_ptr<const Trace> Run::begin_trace() {
  trace_ = std::make_shared<Trace>(Trace{.plan = plan_});
  return trace_;
}

void Run::start(Paths& paths, int lane) {
  paths_ = &paths;
  lane_ = lane;
  if (trial_call_.plain && !trial_call_.trial->encodes(trial_call_.number)) {
    plan_ = std::move(trial_call_.plain);
  }
  const Schedule& schedule = plan_->schedule;
  left_ = static_cast<int>(plan_->steps.size());
  if (device_) {
    device_->start(*plan_, *paths.streams());
    memory_.set(Space::scratch, device_->scratch());
    memory_.set(Space::staging, device_->staging());
    memory_.set(Space::residual, device_->residual());
    memory_.kind = device_->memory();
  } else if (plan_->scratch_bytes > 0) {
    scratch_.reset(new std::byte[static_cast<size_t>(plan_->scratch_bytes)]);
    memory_.set(Space::scratch, scratch_.get());
  }
  if (schedule.messages > 0) messages_.emplace(*plan_, memory_, paths, operation_);
  if (!schedule.island_steps.empty()) {
    island_.emplace(*plan_, memory_, paths, operation_, lane, captured());
  }
  if (left_ > 1 || !island_) {  // one island step alone waits for nothing
    waiting_ = schedule.waiting;
    ready_ = schedule.ready;
  }
  if (record_ != 0) recorder_->start(record_, *plan_);
  if (trace_) [[unlikely]]
    trace_->begin(plan_);
  if (left_ == 0 && !awaits_fill()) finish();
}

bool Run::awaits_fill() {
  if (!device_ || !plan_->steps.empty() || captured()) return false;
  Status status;
  const bool filled = device_->filled(status);
  if (!status.ok()) fail(at_step(-1, status));  // which ends the run
  return !filled;
}

bool Run::slow_to_start() const {
  const Spec& spec = plan_->spec;
  if (device_ || spec.collective == Collective::recv) return false;
  const bool unequal = !spec.splits.empty();
  const int64_t count = unequal ? buffer_counts(spec, plan_->rank, plan_->size).input : spec.count;
  return count * static_cast<int64_t>(size_of(spec.dtype)) >= kSlowToStart;
}

bool Run::find_sender(const Paths& paths) {
  if (!plan_for_) return true;
  const int sender = paths.sender(Paths::message_body(operation_.user_tag, 0));
  if (sender < 0) return false;
  plan_ = plan_for_(sender);
  plan_for_ = nullptr;
  return true;
}

bool Run::progress() {
  if (finished_) return false;
  bool moved = false;
  const bool going = status_.ok() && consequence_.ok();
  if (going && !unfilled_.empty() && may_post(unfilled_[0])) {
    for (int index : std::exchange(unfilled_, {})) post(index);
    moved = true;
  }
  while (going && !ready_.empty() && status_.ok()) {
    int index = ready_.back();
    ready_.pop_back();
    start_step(index);
    moved = true;
  }
  if (going && !posted() && is_message(plan_->spec.collective)) moved |= post_in_order();
  if (going && status_.ok() && island_ && island_->next() >= 0) moved |= progress_island();
  if (uses_network()) moved |= poll_messages();
  if (device_ && !device_->steps().idle()) moved |= poll_device();
  if (status_.ok() && !consequence_.ok() &&
      Clock::now() - consequence_at_ > (disputed_ ? kDisputeBound : kCauseBound)) {
    fail(consequence_);
  }
  if (!status_.ok() && island_) island_->poll_release();
  if (status_.ok() ? left_ == 0 && !awaits_fill()
                   : released() || Clock::now() - failed_at_ > kReleaseBound) {
    finish();
  }
  return moved || finished_;
}

void Run::start_step(int index) {
  switch (plan_->steps[index].kind->performer) {
    case Performer::link:  // a user's message is posted by post_in_order()
      if (is_message(plan_->spec.collective)) return;
      return may_post(index) ? post(index) : unfilled_.push_back(index);
    case Performer::rank:
      return start_own(index);
    case Performer::island:
      return;  // progress_island() starts it once its count in waiting_ is zero
  }
}

void Run::start_own(int index) {
  const Step& step = plan_->steps[index];
  begin_step(index);
  if (step.target.count == 0) return complete(index);
  if (!device_ || step.in_staging()) {
    const Status status = perform(step);
    return status.ok() ? complete(index) : fail(at_step(index, status));
  }
  const Status status = device_->steps().start(index, memory_.operands(step));
  if (!status.ok()) return fail(at_step(index, status));
  if (!captured()) return;
  device_->end_at(device_->steps().leave_to_graph());
  complete(index);
}

Status Run::perform(const Step& step) {
  HostSteps host(*plan_);
  const Operands operands = memory_.operands(step);
  if (!trial_call_.trial || !(step.kind->encodes || step.kind->decodes)) {
    return step.kind->run(host, step, operands);
  }
  const auto begin = Clock::now();
  const Status status = step.kind->run(host, step, operands);
  if (status.ok()) trial_call_.trial->record_work(step, Clock::now() - begin);
  return status;
}

bool Run::may_post(int index) {
  if (!device_ || plan_->steps[index].message().space == Space::staging) return true;
  Status status;
  const bool filled = device_->filled(status);
  if (!status.ok()) fail(at_step(index, status));
  return filled;
}

void Run::post(int index) {
  const Status status = messages_->post(index);
  if (!status.ok()) return fail_message(index, status);
  const Step& step = plan_->steps[index];
  if (trial_call_.trial && step.kind->sends && step.message().codec) {
    const auto bytes = static_cast<int64_t>(encoded_length(memory_.at(step.message())));
    trial_call_.trial->record_message(step.message().plain_bytes(), bytes);
  }
  begin_step(index);
}

// Parts of a user's message match by their order alone.
bool Run::post_in_order() {
  const std::vector<Step>& steps = plan_->steps;
  bool moved = false;
  for (; next_message_ < steps.size() && status_.ok(); ++next_message_) {
    if (!steps[next_message_].is_message()) continue;
    if (waiting_[next_message_] != 0 || !may_post(static_cast<int>(next_message_))) break;
    post(static_cast<int>(next_message_));
    moved = true;
  }
  return moved;
}

bool Run::progress_island() {
  const int index = island_->next();
  if (!island_->active()) {
    if (!waiting_.empty() && waiting_[index] != 0) return false;
    if (device_) {
      const Status status = device_->steps().await_filled(island_->stream());
      if (!status.ok()) {
        fail(at_step(index, status));
        return true;
      }
    }
    begin_step(index);
    island_->start();
    if (captured()) device_->end_at(island_->event());
  }
  Status status;
  const Island::Progress progress = island_->progress(status);
  same_processor_ = progress == Island::Progress::same_processor;
  if (progress != Island::Progress::done) return progress == Island::Progress::advanced;
  if (status.code() == Code::aborted) {
    await_cause(status);
  } else if (status.ok()) {
    complete(index);
  } else if (status.code() == Code::invalid_argument) {
    begin_dispute(status);
  } else {
    fail(status);
  }
  return true;
}

bool Run::poll_messages() {
  return messages_->poll([this](int index, const Status& status) {
    if (!status_.ok() || !consequence_.ok()) return;
    status.ok() ? complete(index) : fail_message(index, status);
  });
}

bool Run::poll_device() {
  std::vector<int> over;
  Status status;
  const bool moved = device_->steps().poll(over, status);
  for (int index : over) complete(index);
  if (!status.ok()) fail(at_step(-1, status));
  return moved;
}

// A plan of one step has the times of its operation.
void Run::begin_step(int index) {
  const auto& steps = plan_->steps;
  if (record_ != 0 && steps.size() > 1) recorder_->begin_step(record_, index, steps[index]);
  if (trace_) [[unlikely]]
    trace_->begin(index);
}

void Run::complete(int index) {
  --left_;
  if (record_ != 0 && plan_->steps.size() > 1) recorder_->end_step(record_, index);
  if (trace_) [[unlikely]]
    trace_->end(index);
  for (int follower : plan_->schedule.followers[index]) {
    if (--waiting_[follower] == 0) ready_.push_back(follower);
  }
}

// A broken link is a consequence: its peer died or left, or another operation has failed.
void Run::fail_message(int index, const Status& status) {
  if (status.code() == Code::invalid_argument && lane_ >= 0) {
    return begin_dispute(at_step(index, status));
  }
  const bool cause = status.code() == Code::invalid_argument || status.code() == Code::vendor;
  cause ? fail(at_step(index, status)) : await_cause(at_step(index, status));
}

void Run::await_cause(const Status& status) {
  if (!consequence_.ok()) return;
  consequence_ = status;
  consequence_at_ = Clock::now();
}

void Run::begin_dispute(const Status& status) {
  disputed_ = consequence_.ok();
  await_cause(status);
}

void Run::fail(const Status& status) {
  if (finished_ || !status_.ok()) return;
  status_ = status;
  failed_at_ = Clock::now();
  if (!started()) return finish();
  if (record_ != 0 && plan_->steps.size() > 1) {
    for (int index : steps_under_way())
      recorder_->keep_under_way(record_, index, plan_->steps[index]);
  }
  if (island_) island_->abandon();
  if (messages_) {
    messages_->cancel();
    poll_messages();  // reaps what the transport cancelled at once
  }
  if (island_) island_->poll_release();
  if (released()) finish();
}

void Run::finish() {
  finished_ = true;
  if (record_ != 0) recorder_->end(record_, status_.code());
  if (trace_) [[unlikely]]
    trace_->end();
  if (released()) completion_.release();
}

bool Run::released() const {
  return (!messages_ || messages_->idle()) && (!island_ || !island_->holds_buffers()) &&
         (!device_ || device_->released());
}

void Run::poll_release() {
  if (messages_) poll_messages();
  if (device_ && started()) poll_device();
  if (island_) island_->poll_release();
  if (released()) completion_.release();
}

bool Run::uses_device() const {
  return device_ && started() && (device_->busy() || (island_ && island_->active()));
}

bool Run::in_streams() const {
  if (finished_) return true;
  if (!device_ || !started() || !status_.ok() || !consequence_.ok()) return false;
  const int in_engine = island_ && island_->event() != nullptr ? 1 : 0;
  return left_ == device_->steps().under_way() + in_engine;
}

Status Run::check_not_captured(Stream stream) const {
  if (finished_ || device_->end_in_graph() != nullptr || !device_->capturing(stream)) {
    return Status();
  }
  return Status(Code::invalid_argument,
                describe() +
                    ": expected an operation that is over before a graph is captured that "
                    "waits for it; this one is under way; wait for it first");
}

Status Run::block_stream(Stream stream) const {
  if (Event end = device_->end_in_graph()) return device_->block_stream(stream, end);
  if (finished_) return status_;
  const Event end = island_ ? island_->event() : nullptr;
  const Status status = end ? device_->block_stream(stream, end) : Status();
  return status.ok() ? device_->steps().block(stream) : status;
}

Completion::Aftermath Run::announce() {
  Completion::Aftermath left = completion_.announce();
  if (device_ && completion_.released()) device_->release_memory();
  return left;
}

Status Run::at_step(int index, const Status& status) const {
  Status::Details details = status.details();
  details.op = describe();
  details.step = index;
  details.rank = plan_->rank;
  if (index >= 0) details.peer = plan_->steps[index].peer;
  return Status(details);
}

std::vector<int> Run::steps_under_way() const {
  std::vector<int> steps;
  if (!started() || finished_) return steps;
  if (island_ && island_->active()) steps.push_back(island_->next());
  if (messages_) {
    steps.insert(steps.end(), messages_->in_flight().begin(), messages_->in_flight().end());
  }
  if (device_) device_->steps().append_under_way(steps);
  return steps;
}

std::string Run::where() const {
  if (plan_for_) return "waiting for a message from any rank";
  if (!decided()) return "waiting for the codec figures of all ranks";
  if (!started()) return "waiting for an earlier operation of this communicator";
  auto text = [this](int index) {
    const Step& step = plan_->steps[index];
    return "step " + std::to_string(index) + ": " + step.kind->name +
           (step.is_message() ? to_peer(step) : "");
  };
  std::string words;
  if (island_ && island_->active()) {
    words = text(island_->next()) + " with the ranks of its island";
  }
  for (size_t i = 0; messages_ && i < messages_->in_flight().size() && i < 3; ++i) {
    words += (words.empty() ? "" : "; ") + text(messages_->in_flight()[i]);
  }
  std::vector<int> on_device;
  if (device_) device_->steps().append_under_way(on_device);
  for (size_t i = 0; i < on_device.size() && i < 3; ++i) {
    words += (words.empty() ? "" : "; ") + text(on_device[i]) + " on its device";
  }
  if (!behind_stream()) return words.empty() ? "waiting for its device" : "waiting at " + words;
  if (words.empty()) return "waiting for earlier work in the caller's stream";
  return "waiting at " + words + ", behind earlier work in the caller's stream";
}

}  // namespace hetcomm
