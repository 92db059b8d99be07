#include "exec/run.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/fnv.h"
#include "device/reduce.h"

namespace hetcomm {
namespace {

IslandKind island_kind(StepKind kind) {
  switch (kind) {
    case StepKind::island_all_reduce:
      return IslandKind::all_reduce;
    case StepKind::island_reduce_scatter:
      return IslandKind::reduce_scatter;
    case StepKind::island_all_gather:
      return IslandKind::all_gather;
    default:
      return IslandKind::all_to_all;
  }
}

// When a neighbour gives an operation up or a link breaks, the reason follows over the control
// connections; after this long it is reported without.
constexpr auto kReasonBound = std::chrono::seconds(2);

// Bytes that take longer to copy into a socket than the progress thread takes to wake up.
constexpr int64_t kLongToStart = 128 << 10;

// A failed operation waits this long for the transport to let go of its buffers.
constexpr auto kSettleBound = std::chrono::milliseconds(500);

// The same on every member, unlike an address.
int64_t place(const Range& range) { return static_cast<int64_t>(range.space) << 56 | range.offset; }

}  // namespace

uint64_t hash(const CallDescriptor& call) {
  uint64_t value = kFnvBasis;
  for (uint64_t word : {call.sequence, call.count, uint64_t{call.collective} << 32 | call.root,
                        uint64_t{call.dtype} << 32 | call.op,
                        std::bit_cast<uint64_t>(call.factor + 0.0), call.history}) {
    value = (value ^ word) * 0x9e3779b97f4a7c15;
    value ^= value >> 29;
  }
  return value;
}

Run::Run(std::shared_ptr<const Plan> plan, Buffers buffers, CallDescriptor call, uint32_t user_tag,
         std::chrono::nanoseconds timeout, std::shared_ptr<Device> device)
    : plan_(std::move(plan)),
      buffers_(buffers),
      call_(call),
      user_tag_(user_tag),
      timeout_(timeout),
      element_(size_of(plan_->spec.dtype)),
      device_(std::move(device)) {}

void Run::start(Paths& paths, int lane) {
  paths_ = &paths;
  lane_ = lane;
  const Schedule& schedule = plan_->schedule;
  left_ = static_cast<int>(plan_->steps.size());
  const size_t scratch = static_cast<size_t>(plan_->scratch_count) * element_;
  if (device_) {
    device_steps_.emplace(*paths.streams(), filled_);
  } else if (scratch > 0) {
    scratch_.reset(new std::byte[scratch]);
  }
  unposted_ = schedule.messages;
  if (unposted_ > 0) {
    hash_ = hash(call_);
    requests_ = std::make_unique<Request[]>(plan_->steps.size());
  }
  if (left_ > 1 || schedule.island_steps.empty()) {  // one island step alone waits for nothing
    waiting_ = schedule.waiting;
    ready_ = schedule.ready;
  }
  if (trace_) [[unlikely]]
    trace_->begin(plan_);
  if (left_ == 0) finish();
}

bool Run::keeps_caller() const {
  const Spec& spec = plan_->spec;
  if (device_ || spec.collective == Collective::recv) return false;
  int64_t count = spec.count;
  if (!spec.splits.empty()) {
    const auto sent = spec.splits.begin() + int64_t{plan_->rank} * plan_->size;
    count = std::accumulate(sent, sent + plan_->size, int64_t{0});
  }
  return count * static_cast<int64_t>(element_) >= kLongToStart;
}

std::byte* Run::address(const Range& range) const {
  std::byte* base = nullptr;
  switch (range.space) {
    case Space::input:
      base = static_cast<std::byte*>(const_cast<void*>(buffers_.input));
      break;
    case Space::output:
      base = static_cast<std::byte*>(buffers_.output);
      break;
    case Space::scratch:
      base = device_ ? device_scratch_.data() : scratch_.get();
      break;
    case Space::staging:
      base = staging_.data();
      break;
  }
  return base + static_cast<size_t>(range.offset) * element_;
}

bool Run::progress() {
  if (finished_) return false;
  bool moved = false;
  const bool going = status_.ok() && given_up_.ok();
  if (going && !held_messages_.empty() && may_post(held_messages_[0])) {
    for (int index : std::exchange(held_messages_, {})) post(index);
    moved = true;
  }
  while (going && !ready_.empty() && status_.ok()) {
    int index = ready_.back();
    ready_.pop_back();
    start_step(index);
    moved = true;
  }
  if (going && unposted_ > 0 && is_message(plan_->spec.collective)) moved |= post_in_order();
  if (going && status_.ok() && next_island_ < plan_->schedule.island_steps.size())
    moved |= progress_island();
  if (!in_flight_.empty()) moved |= poll_messages();
  if (device_steps_ && !device_steps_->idle()) moved |= poll_device();
  if (status_.ok() && !given_up_.ok() && Clock::now() - given_up_at_ > kReasonBound) {
    fail(given_up_);
  }
  network_ = !in_flight_.empty();
  if (!status_.ok()) look_at_island();
  if (status_.ok() ? left_ == 0 : settled() || Clock::now() - failed_at_ > kSettleBound) {
    finish();
  }
  return moved || finished_;
}

void Run::start_step(int index) {
  const Step& step = plan_->steps[index];
  switch (step.kind) {
    case StepKind::send:
    case StepKind::recv:
      if (is_message(plan_->spec.collective)) return;
      may_post(index) ? post(index) : held_messages_.push_back(index);
      return;  // parts of a message are told apart by their order only: post_in_order()
    case StepKind::copy:
      if (trace_) [[unlikely]]
        trace_->begin(index);
      return start_copy(index);
    case StepKind::reduce:
      if (trace_) [[unlikely]]
        trace_->begin(index);
      return start_reduce(index);
    default:
      return;  // an island step: progress_island() finds it by its count of zero
  }
}

Scale Run::scale() const { return rounded(plan_->spec.dtype, scale_of(plan_->spec, plan_->size)); }

void Run::start_reduce(int index) {
  const Step& step = plan_->steps[index];
  std::vector<const void*> sources;
  for (const Range& source : step.sources) sources.push_back(address(source));
  const auto count = static_cast<size_t>(step.target.count);
  if (device_ && step.target.space != Space::staging) {
    const Status status =
        step.scaled ? device_steps_->scale(index, plan_->spec.dtype, scale(), address(step.target),
                                           sources[0], count)
                    : device_steps_->reduce(index, plan_->spec.dtype, combining(plan_->spec.op),
                                            address(step.target), sources, count);
    if (!status.ok()) fail(at_step(index, status));
    return;
  }
  if (step.scaled) {
    scaled_sum(plan_->spec.dtype, scale(), address(step.target), sources.data(),
               static_cast<int>(sources.size()), count);
  } else {
    reduce(plan_->spec.dtype, combining(plan_->spec.op), address(step.target), sources.data(),
           static_cast<int>(sources.size()), count);
  }
  complete(index);
}

void Run::complete(int index) {
  --left_;
  if (trace_) [[unlikely]]
    trace_->end(index);
  for (int follower : plan_->schedule.followers[index]) {
    if (--waiting_[follower] == 0) ready_.push_back(follower);
  }
}

bool Run::progress_island() {
  Island& island = *paths_->island();
  if (active_island_ < 0) {
    const int index = plan_->schedule.island_steps[next_island_];
    if (!waiting_.empty() && waiting_[index] != 0) return false;
    const Step& step = plan_->steps[index];
    island_call_.kind = island_kind(step.kind);
    island_call_.dtype = plan_->spec.dtype;
    island_call_.op = step.scaled ? plan_->spec.op : combining(plan_->spec.op);
    island_call_.factor = plan_->spec.factor;
    island_call_.descriptor = call_;
    island_call_.descriptor.step = next_island_;  // indices of steps differ between ranks
    island_call_.pieces.clear();
    for (const Piece& piece : step.pieces) {
      const bool sends = piece.from < 0 || piece.from == plan_->rank;
      const bool receives = piece.to < 0 || piece.to == plan_->rank;
      auto member = [this](int rank) {
        auto found = std::find(plan_->members.begin(), plan_->members.end(), rank);
        return found == plan_->members.end() ? -1
                                             : static_cast<int>(found - plan_->members.begin());
      };
      island_call_.pieces.push_back({member(piece.from), member(piece.to),
                                     sends ? address(piece.source) : nullptr,
                                     receives ? address(piece.target) : nullptr, piece.source.count,
                                     place(piece.source), place(piece.target)});
    }
    if (device_) {
      const Status status = device_steps_->follow(island.stream());
      if (!status.ok()) {
        fail(at_step(index, status));
        return true;
      }
    }
    active_island_ = index;
    in_island_ = true;
    island_call_.recorded = recorded_;
    if (trace_) [[unlikely]]
      trace_->begin(index);
    launch(island);
    if (recorded_) recording_ = island.event(lane_);
  }
  Status status;
  Island::Progress progress = island.progress(lane_, status);
  crowded_ = progress == Island::Progress::crowded;
  if (progress != Island::Progress::done) return progress == Island::Progress::advanced;
  if (status.code() == Code::aborted) {
    give_up(status);
    return true;
  }
  int index = active_island_;
  active_island_ = -1;
  ++next_island_;
  in_island_ = !status.ok();
  if (status.ok()) {
    complete(index);
  } else {
    fail(status);
  }
  return true;
}

// An engine with a stream may wait in its library.
void Run::launch(Island& island) {
  if (island.stream() == nullptr) return island.start(lane_, island_call_);
  launching_ = true;
  try {
    paths_->launch()([&] { island.start(lane_, island_call_); });
  } catch (...) {
    launching_ = false;
    throw;
  }
  launching_ = false;
}

Status Run::at_step(int index, const Status& status) const {
  Status::Details details = status.details();
  details.op = describe();
  details.step = index;
  details.rank = plan_->rank;
  if (index >= 0) details.peer = plan_->steps[index].peer;
  return Status(details);
}

void Run::give_up(const Status& status) {
  if (!given_up_.ok()) return;
  given_up_ = status;
  given_up_at_ = Clock::now();
}

void Run::fail(const Status& status) {
  if (finished_ || !status_.ok()) return;
  status_ = status;
  failed_at_ = Clock::now();
  if (!started()) return finish();
  if (active_island_ >= 0) {
    paths_->island()->abandon(lane_);
    active_island_ = -1;
  }
  for (int index : in_flight_) {
    if (requests_[index].done) continue;
    const Step& step = plan_->steps[index];
    Status ignored;
    if (step.kind == StepKind::recv) {
      paths_->transport(step.peer)->cancel(requests_[index]);
    } else if (Link* link = paths_->link(step.peer, ignored)) {
      link->close(false);  // the only way to make the transport let go of the memory
    }
  }
  look_at_island();
  if (settled()) finish();
}

void Run::finish() {
  finished_ = true;
  if (trace_) [[unlikely]]
    trace_->end();
  let_go_ = settled();
}

void Run::settle() {
  poll_messages();
  if (device_steps_) poll_device();
  look_at_island();
  let_go_ = settled();
}

void Run::look_at_island() {
  if (in_island_) in_island_ = !paths_->island()->released();
}

std::string Run::describe() const {
  std::string text = hetcomm::describe(plan_->spec);
  if (is_message(plan_->spec.collective)) {
    return text + " with rank " + std::to_string(plan_->spec.root) + " tag " +
           std::to_string(user_tag_);
  }
  return text + " #" + std::to_string(call_.sequence);
}

std::string Run::where() const {
  if (plan_for_) return "waiting for a message from any rank";
  if (!started()) return "waiting for an earlier operation of this communicator";
  auto text = [this](int index) {
    const Step& step = plan_->steps[index];
    std::string words = "step " + std::to_string(index) + ": " + name(step.kind);
    if (step.peer >= 0) words += (step.kind == StepKind::send ? " to" : " from");
    if (step.peer >= 0) words += " rank " + std::to_string(step.peer);
    return words;
  };
  std::string words;
  if (active_island_ >= 0) words = text(active_island_) + " with the ranks of its island";
  for (size_t i = 0; i < in_flight_.size() && i < 3; ++i) {
    words += (words.empty() ? "" : "; ") + text(in_flight_[i]);
  }
  return "waiting at " + (words.empty() ? "nothing" : words);
}

Run::Aftermath Run::announce() {
  Aftermath left;
  done_.store(true);
  if (over_) over_->set();
  if (!watched_.load() && !device_) return left;
  std::lock_guard lock(listener_mutex_);
  left.listeners.swap(listeners_);
  if (let_go_) {
    left.held.swap(held_);
    device_scratch_ = DeviceBlock();
    staging_ = DeviceBlock();
  }
  return left;
}

void Run::hold(std::shared_ptr<void> memory) {
  watched_.store(true);
  if (done() && let_go_) return;
  std::lock_guard lock(listener_mutex_);
  if (!done() || !let_go_) held_.push_back(std::move(memory));
}

void Run::when_done(std::function<void(const Status&)> listener) {
  watched_.store(true);
  {
    std::lock_guard lock(listener_mutex_);
    if (!done()) {
      listeners_.push_back(std::move(listener));
      return;
    }
  }
  listener(status_);
}

}  // namespace hetcomm
