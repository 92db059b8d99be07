#include "exec/flight_recorder.h"

#include <algorithm>
#include <bit>
#include <map>

#include "base/config.h"
#include "base/ticks.h"

namespace hetcomm {
namespace {

constexpr int64_t kDefaultOperations = 128, kMostOperations = 1 << 16;

// Cheap to find, unlike the bytes of an island step with its pieces.
int64_t bytes_of(const Step& step) {
  return step.is_message() ? step.message().message_bytes() : step.target.plain_bytes();
}

}  // namespace

size_t FlightRecorder::chosen_operations() {
  return static_cast<size_t>(setting("HETCOMM_RECORDER", kDefaultOperations, 0, kMostOperations));
}

FlightRecorder::FlightRecorder(size_t operations)
    : entries_(operations == 0 ? 0 : std::bit_ceil(operations)) {}

FlightRecorder::Entry* FlightRecorder::find(uint64_t number) {
  if (number == 0) return nullptr;
  Entry& entry = entries_[number & (entries_.size() - 1)];
  return entry.number == number ? &entry : nullptr;  // else overwritten
}

uint64_t FlightRecorder::submit(const Spec& spec, const Operation& operation) {
  if (entries_.empty()) return 0;
  const uint64_t number = ++submitted_;
  Entry& entry = entries_[number & (entries_.size() - 1)];
  entry.number = number;
  entry.submitted = Ticks::now();
  entry.started = entry.ended = 0;
  entry.call = operation.call;
  entry.user_tag = operation.user_tag;
  entry.steps = 0;
  if (is_message(spec.collective)) {
    entry.call.collective = static_cast<uint16_t>(spec.collective);
    entry.call.dtype = static_cast<uint8_t>(spec.dtype);
    entry.call.root = static_cast<uint32_t>(spec.root);
    entry.call.count = static_cast<uint64_t>(spec.count);
  }
  return number;
}

void FlightRecorder::start(uint64_t number, const Plan& plan) {
  Entry* const entry = find(number);
  if (entry == nullptr) return;
  entry->steps = static_cast<int32_t>(plan.steps.size());
  if (is_message(plan.spec.collective)) entry->call.root = static_cast<uint32_t>(plan.spec.root);
  if (entry->steps <= 1) {
    if (entry->steps == 1) {
      const Step& step = plan.steps[0];
      entry->only = step.kind;
      entry->bytes = bytes_of(step);
      entry->peer = step.peer;
      entry->tag = step.tag;
    }
    entry->started = entry->submitted;  // as a rule the same moment; saves a read of the clock
    return;
  }
  entry->started = Ticks::now();
  const size_t length = std::min(plan.algorithm.size(), entry->algorithm.size() - 1);
  std::copy_n(plan.algorithm.begin(), length, entry->algorithm.begin());
  entry->algorithm[length] = 0;
  if (events_.empty()) events_.resize(kEventsPerOperation * entries_.size());
}

void FlightRecorder::end(uint64_t number, Code code) {
  Entry* const entry = find(number);
  if (entry == nullptr) return;
  entry->ended = Ticks::now();
  entry->code = code;
  count(*entry);
}

void FlightRecorder::count(const Entry& entry) {
  const CallDescriptor& call = entry.call;
  const auto collective = static_cast<Collective>(call.collective);
  const auto dtype = static_cast<Dtype>(call.dtype);
  const uint64_t bytes = call.count * size_of(dtype);
  const uint64_t ticks = entry.ended - entry.submitted;
  OperationTotals& totals = totals_[call.collective];
  ++totals.operations;
  totals.ticks += ticks;
  if (entry.code != Code::ok) {
    ++totals.errors;
    return;
  }
  totals.bytes += bytes;
  if (!synchronizes(collective)) return;
  CallSample& sample = bytes < kLongCall ? short_calls_ : long_calls_;
  sample.add({.sequence = call.sequence,
              .begin = static_cast<int64_t>(entry.submitted),
              .time = static_cast<int64_t>(ticks),
              .count = static_cast<int64_t>(call.count),
              .collective = collective,
              .dtype = dtype});
}

std::array<OperationTotals, kCollectives> FlightRecorder::totals() const {
  const TickScale scale;
  std::array<OperationTotals, kCollectives> totals = totals_;
  for (OperationTotals& one : totals) one.ticks = static_cast<uint64_t>(scale.ns(one.ticks));
  return totals;
}

std::vector<CallTime> FlightRecorder::call_times(uint64_t since, size_t each) const {
  const TickScale scale;
  std::vector<CallTime> found = short_calls_.read(since, each);
  const std::vector<CallTime> more = long_calls_.read(since, each);
  found.insert(found.end(), more.begin(), more.end());
  for (CallTime& one : found) {
    one.begin = scale.clock_ns(static_cast<uint64_t>(one.begin));
    one.time = scale.ns(static_cast<uint64_t>(one.time));
  }
  return found;
}

void FlightRecorder::add(uint64_t number, int index, const Step* step, Event event) {
  if (events_.empty()) return;
  StepEvent& one = events_[added_++ & (events_.size() - 1)];
  one.number = number;
  one.at = Ticks::now();
  one.index = index;
  one.event = event;
  if (step == nullptr) return;
  one.kind = step->kind;
  one.bytes = bytes_of(*step);
  one.peer = step->peer;
  one.tag = step->tag;
}

void FlightRecorder::begin_step(uint64_t number, int index, const Step& step) {
  add(number, index, &step, Event::begin);
}

void FlightRecorder::end_step(uint64_t number, int index) {
  add(number, index, nullptr, Event::end);
}

void FlightRecorder::keep_under_way(uint64_t number, int index, const Step& step) {
  add(number, index, &step, Event::under_way);
}

std::vector<RecordedOperation> FlightRecorder::read() const {
  const TickScale scale;
  const auto ns = [&](uint64_t ticks) { return ticks == 0 ? -1 : scale.clock_ns(ticks); };
  std::vector<RecordedOperation> operations;
  std::map<uint64_t, size_t> position;  // by number
  const uint64_t kept = std::min<uint64_t>(submitted_, entries_.size());
  for (uint64_t number = submitted_ - kept + 1; number <= submitted_; ++number) {
    const Entry& entry = entries_[number & (entries_.size() - 1)];
    RecordedOperation one{.number = number,
                          .call = entry.call,
                          .user_tag = entry.user_tag,
                          .algorithm = entry.steps > 1 ? entry.algorithm.data() : "",
                          .step_count = entry.steps,
                          .code = entry.ended == 0 ? Code::ok : entry.code,
                          .submitted = ns(entry.submitted),
                          .started = ns(entry.started),
                          .ended = ns(entry.ended)};
    if (entry.steps == 1) {
      one.steps.push_back({.kind = entry.only,
                           .peer = entry.peer,
                           .tag = entry.tag,
                           .bytes = entry.bytes,
                           .begin = one.started,
                           .end = one.failed() ? -1 : one.ended});
    }
    position[number] = operations.size();
    operations.push_back(std::move(one));
  }
  const uint64_t events = std::min<uint64_t>(added_, events_.size());
  for (uint64_t i = added_ - events; i < added_; ++i) {
    const StepEvent& event = events_[i & (events_.size() - 1)];
    const auto found = position.find(event.number);
    if (found == position.end()) continue;
    auto& steps = operations[found->second].steps;
    const auto at =
        std::lower_bound(steps.begin(), steps.end(), event.index,
                         [](const RecordedStep& step, int index) { return step.index < index; });
    const bool known = at != steps.end() && at->index == event.index;
    if (event.event == Event::end) {
      if (known) at->end = ns(event.at);  // else its begin is overwritten
    } else if (!known) {
      steps.insert(at, {.index = event.index,
                        .kind = event.kind,
                        .peer = event.peer,
                        .tag = event.tag,
                        .bytes = event.bytes,
                        .begin = event.event == Event::begin ? ns(event.at) : -1});
    }
  }
  return operations;
}

}  // namespace hetcomm
