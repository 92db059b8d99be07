#include "health/rank_state.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>

#include "base/packing.h"

namespace hetcomm {
namespace {

constexpr size_t kLongestText = 1 << 10;
// A malformed record must not make this rank reserve more.
constexpr uint64_t kMostOperations = 1 << 16, kMostSteps = 1 << 20, kMostSamples = 1 << 14;

uint64_t index_of(const StepKind* kind) {
  const auto& kinds = step_kinds();
  return static_cast<uint64_t>(std::find(kinds.begin(), kinds.end(), kind) - kinds.begin());
}

void pack(Packer& packer, const RecordedStep& step) {
  packer.put(static_cast<uint64_t>(step.index)).put(index_of(step.kind));
  packer.put(static_cast<uint64_t>(step.peer + 1)).put(static_cast<uint64_t>(step.bytes));
  packer.put(static_cast<uint64_t>(step.begin)).put(static_cast<uint64_t>(step.end));
}

std::string pack(const RecordedOperation& operation, bool every_step) {
  Packer packer;
  packer.put(std::string(reinterpret_cast<const char*>(&operation.call), sizeof operation.call))
      .put(uint64_t{operation.user_tag})
      .put(operation.algorithm)
      .put(static_cast<uint64_t>(operation.step_count))
      .put(static_cast<uint64_t>(operation.code))
      .put(uint64_t{operation.behind_stream});
  for (int64_t time : {operation.submitted, operation.started, operation.ended}) {
    packer.put(static_cast<uint64_t>(time));
  }
  std::vector<const RecordedStep*> steps;
  for (const RecordedStep& step : operation.steps) {
    if (step.kind != nullptr && (every_step || step.end < 0)) steps.push_back(&step);
  }
  packer.put(uint64_t{steps.size()});
  for (const RecordedStep* step : steps) pack(packer, *step);
  return packer.take();
}

uint64_t below(Unpacker& from, uint64_t limit, const char* what) {
  const uint64_t number = from.number();
  if (number < limit) return number;
  throw Error(Code::invalid_argument, std::string("expected ") + what + " below " +
                                          std::to_string(limit) + ", got " +
                                          std::to_string(number));
}

// No sum of amounts or times overflows, and no product with the bytes of an element.
constexpr int64_t kMostAmount = int64_t{1} << 56, kLatestTime = int64_t{1} << 60;
constexpr int64_t kLongestCall = kLatestTime / kMostSamples;  // ns; longer calls count as this long

int64_t unpack_amount(Unpacker& from) {
  return static_cast<int64_t>(below(from, kMostAmount, "an amount"));
}

// A time on a rank's clock, or -1 for none.
int64_t unpack_time(Unpacker& from) {
  const auto time = static_cast<int64_t>(from.number());
  if (time >= -kLatestTime && time < kLatestTime) return time;
  throw Error(Code::invalid_argument,
              "expected a time of a clock in ns, got " + std::to_string(time));
}

RecordedStep unpack_step(Unpacker& from, int size) {
  RecordedStep step;
  step.index = static_cast<int>(below(from, INT32_MAX, "the index of a step"));
  step.kind = step_kinds()[below(from, step_kinds().size(), "a kind of step")];
  step.peer = static_cast<int>(below(from, static_cast<uint64_t>(size) + 1, "a rank")) - 1;
  step.bytes = unpack_amount(from);
  for (int64_t* time : {&step.begin, &step.end}) {
    *time = unpack_time(from);
  }
  return step;
}

RecordedOperation unpack_operation(Unpacker& from, int size) {
  RecordedOperation operation;
  const std::string call = from.text();
  if (call.size() != sizeof operation.call) {
    throw Error(Code::invalid_argument, "expected a call of " +
                                            std::to_string(sizeof operation.call) + " bytes, got " +
                                            std::to_string(call.size()));
  }
  std::memcpy(&operation.call, call.data(), sizeof operation.call);
  operation.user_tag = static_cast<uint32_t>(from.number());
  operation.algorithm = from.text().substr(0, kLongestText);
  operation.step_count = static_cast<int>(below(from, INT32_MAX, "a number of steps"));
  operation.code = static_cast<Code>(
      below(from, static_cast<uint64_t>(Code::peer_failed) + 1, "the code of an outcome"));
  operation.behind_stream = below(from, 2, "a yes or no") == 1;
  for (int64_t* time : {&operation.submitted, &operation.started, &operation.ended}) {
    *time = unpack_time(from);
  }
  for (uint64_t left = below(from, kMostSteps, "a number of steps"); left > 0; --left) {
    operation.steps.push_back(unpack_step(from, size));
  }
  return operation;
}

}  // namespace

std::string RankState::pack(size_t most, bool every_step) const {
  Packer head;
  head.put(process)
      .put(clock)
      .put(static_cast<uint64_t>(now))
      .put(calls)
      .put(note.substr(0, kLongestText));
  head.put(uint64_t{call_times.size()});
  for (const CallTime& one : call_times) {
    head.put(one.sequence).put(static_cast<uint64_t>(one.begin));
    head.put(static_cast<uint64_t>(one.time)).put(static_cast<uint64_t>(one.count));
    head.put(static_cast<uint64_t>(one.collective)).put(static_cast<uint64_t>(one.dtype));
  }
  head.put(uint64_t{messages.size()});
  for (const MessageEnd& one : messages) {
    head.put(static_cast<uint64_t>(one.peer)).put(static_cast<uint64_t>(one.tag));
    head.put(uint64_t{one.sends}).put(one.sequence);
    head.put(static_cast<uint64_t>(one.bytes)).put(static_cast<uint64_t>(one.at));
  }
  std::string bytes = head.take();
  // Operations under way and failed ones come first, then the newest.
  std::vector<size_t> order(operations.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (operations[a].succeeded() != operations[b].succeeded()) return operations[b].succeeded();
    return operations[a].succeeded() ? a > b : a < b;
  });
  std::vector<std::pair<size_t, std::string>> kept;
  size_t total = bytes.size() + sizeof(uint64_t);
  for (size_t i : order) {
    std::string packed = hetcomm::pack(operations[i], every_step);
    if (total + packed.size() > most) continue;
    total += packed.size();
    kept.emplace_back(i, std::move(packed));
  }
  std::sort(kept.begin(), kept.end());
  bytes += Packer().put(uint64_t{kept.size()}).take();
  for (const auto& [i, packed] : kept) bytes += packed;
  return bytes;
}

RankState RankState::unpack(const std::string& bytes, int size) {
  Unpacker from(bytes);
  RankState state;
  state.process = from.number();
  state.clock = from.text();
  state.now = unpack_time(from);
  state.calls = from.number();
  state.note = from.text();
  for (uint64_t left = below(from, kMostSamples, "a number of calls"); left > 0; --left) {
    CallTime one{.sequence = from.number(), .begin = unpack_time(from)};
    one.time = std::min(unpack_amount(from), kLongestCall);
    one.count = unpack_amount(from);
    one.collective = static_cast<Collective>(below(from, kCollectives, "a collective"));
    one.dtype = static_cast<Dtype>(below(from, kDtypes, "a dtype"));
    state.call_times.push_back(one);
  }
  for (uint64_t left = below(from, kMostSamples, "a number of messages"); left > 0; --left) {
    MessageEnd one;
    one.peer = static_cast<int>(below(from, static_cast<uint64_t>(size), "a rank"));
    one.tag = static_cast<int>(below(from, INT32_MAX, "a tag"));
    one.sends = below(from, 2, "a direction") == 1;
    one.sequence = from.number();
    one.bytes = unpack_amount(from);
    one.at = unpack_time(from);
    state.messages.push_back(one);
  }
  for (uint64_t left = below(from, kMostOperations + 1, "a number of operations"); left > 0;
       --left) {
    state.operations.push_back(unpack_operation(from, size));
  }
  from.end();
  return state;
}

std::string clock_name() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 64> time{};
  [[maybe_unused]] const ssize_t length =
      readlink("/proc/self/ns/time", time.data(), time.size() - 1);
  return boot + " " + time.data();
}

}  // namespace hetcomm
