#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "exec/operation.h"
#include "exec/totals.h"
#include "plan/plan.h"

namespace hetcomm {

// A recorded step, for readers. Times are ns of Clock; -1 if the event has not happened, or is not
// in the recorder any more.
struct RecordedStep {
  int index = 0;
  const StepKind* kind = nullptr;
  int peer = -1, tag = 0;  // of a message
  int64_t bytes = 0;       // of a message, or of the target
  int64_t begin = -1, end = -1;
};

// A recorded operation, for readers. Times as above.
struct RecordedOperation {
  uint64_t number = 0;         // of all operations of the group on this rank, from 1
  CallDescriptor call;         // a message has its peer as root
  uint32_t user_tag = 0;       // of a message
  std::string algorithm;       // of a plan with several steps
  int step_count = 0;          // of the plan; 0 before the operation starts
  Code code = Code::ok;        // of an operation that is over
  bool behind_stream = false;  // earlier work in the caller's stream is not over
  int64_t submitted = -1, started = -1, ended = -1;
  std::vector<RecordedStep> steps;  // by index; steps under way have no end

  bool message() const { return is_message(static_cast<Collective>(call.collective)); }
  bool failed() const { return code != Code::ok; }
  bool succeeded() const { return ended >= 0 && !failed(); }
};

// The last operations of one communicator and the last steps of their plans, always on, in memory
// of fixed size. An operation costs two reads of Ticks and no allocation. Owned by the queue of the
// communicator; used under the executor's lock.
class FlightRecorder {
 public:
  // `operations`: the number of kept operations, rounded up to a power of two. 0 records nothing.
  // The recorder also keeps kEventsPerOperation step events for each operation. The first plan with
  // several steps allocates the events.
  explicit FlightRecorder(size_t operations);

  // HETCOMM_RECORDER.
  static size_t chosen_operations();

  // Returns the number of the operation; 0 if nothing is recorded.
  uint64_t submit(const Spec& spec, const Operation& operation);
  void start(uint64_t number, const Plan& plan);
  void end(uint64_t number, Code code);
  // Of plans with several steps.
  void begin_step(uint64_t number, int index, const Step& step);
  void end_step(uint64_t number, int index);
  // The step is under way although its begin may be overwritten.
  void keep_under_way(uint64_t number, int index, const Step& step);

  // Those in memory, oldest first.
  std::vector<RecordedOperation> read() const;

  // Since the group began, by collective. Times in ns.
  std::array<OperationTotals, kCollectives> totals() const;
  // A sample of the calls that succeeded, of collectives that synchronize; see CallSample::read().
  // Times in ns.
  std::vector<CallTime> call_times(uint64_t since, size_t each) const;

 private:
  static constexpr size_t kEventsPerOperation = 16;
  struct Entry {
    uint64_t number = 0;
    uint64_t submitted = 0, started = 0, ended = 0;  // ticks; 0: not yet
    CallDescriptor call;
    uint32_t user_tag = 0;
    int32_t steps = 0;
    const StepKind* only = nullptr;  // the kind of a plan with one step
    int64_t bytes = 0;               // of this step
    int32_t peer = -1, tag = 0;      // of this step
    Code code = Code::ok;
    std::array<char, 28> algorithm{};
  };
  enum class Event : uint8_t { begin, end, under_way };
  struct StepEvent {
    uint64_t number = 0;
    uint64_t at = 0;  // ticks
    const StepKind* kind = nullptr;
    int64_t bytes = 0;
    int32_t index = 0, peer = -1, tag = 0;
    Event event = Event::begin;
  };

  Entry* find(uint64_t number);
  void count(const Entry& entry);
  void add(uint64_t number, int index, const Step* step, Event event);

  std::vector<Entry> entries_;     // by number, modulo their count
  std::vector<StepEvent> events_;  // empty before the first plan with several steps
  uint64_t submitted_ = 0, added_ = 0;
  std::array<OperationTotals, kCollectives> totals_{};
  CallSample short_calls_, long_calls_;  // many short calls displace no long one
};

}  // namespace hetcomm
