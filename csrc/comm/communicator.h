#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/fork.h"
#include "bootstrap/sealed_store.h"
#include "comm/trace_recorder.h"
#include "comm/work.h"

namespace hetcomm {

struct Group;

// One rank in a group; starts collectives and messages. All ranks submit collectives in the same
// order. A communicator belongs to the process that made it. In a child of fork() every call throws
// Error(invalid_argument), but abort(), leave() and the destructor do nothing. Thread-safe.
class Communicator {
 public:
  struct CallOptions {
    bool will_wait = false;  // the caller waits at once, so no other thread needs to progress
    std::optional<std::chrono::nanoseconds> timeout;  // the communicator's if absent
    // The work of this stream so far fills the buffers. Without a stream the buffers are ready.
    std::optional<Stream> stream;
    std::shared_ptr<Residual> residual;  // see Spec::feedback
  };

  explicit Communicator(std::unique_ptr<Group> group);  // from bootstrap()
  ~Communicator();                                      // leaves, see leave()
  Communicator(const Communicator&) = delete;

  int rank() const;
  int size() const;
  const Topology& topology() const;
  // A key that all ranks of this group have, and nobody else with a job key. Each purpose has its
  // own.
  std::string key(const std::string& purpose) const;
  // The buffers are memory of this device; null if they are host memory.
  const std::shared_ptr<Device>& device() const;
  // The store; with a job key its values carry seals of this group.
  SealedStore sealed(Store& store) const;
  std::chrono::nanoseconds timeout() const { return timeout_; }
  void set_timeout(std::chrono::nanoseconds timeout) { timeout_ = timeout; }

  // Starts a collective. The buffers hold the elements of buffer_counts(). A buffer stays alive
  // until the work is done, and may be null without elements. Throws Error(invalid_argument) on a
  // bad spec.
  Work submit(const Spec& spec, const void* input, void* output, const CallOptions& options);
  // Like submit(), but never waits for another thread. Submits only if the spec is that of the
  // previous call, its plan has one step, no other thread has a lock and no operation is under
  // way. Otherwise does nothing and returns nothing.
  std::optional<Work> try_submit(const Spec& spec, const void* input, void* output,
                                 const CallOptions& options);
  // Throws the error that submit() would throw for this spec.
  void validate(const Spec& spec);
  // Tells the other ranks, which may wait, that this rank cannot submit its next collective, and
  // why. For callers that find the error before submit().
  void report_refusal(const Status& why);
  // Messages of `count` elements between two ranks. Those of one tag match in order.
  Work send(const void* data, Dtype dtype, int64_t count, int to, uint32_t tag,
            const CallOptions& options);
  Work recv(void* data, Dtype dtype, int64_t count, int from, uint32_t tag,
            const CallOptions& options);
  // Receives from any rank, into host memory. A posted receive that names the sender goes first.
  Work recv_any(void* data, Dtype dtype, int64_t count, uint32_t tag, const CallOptions& options);
  // Waits for a message from `from` with this tag that no posted receive matches; false if none has
  // arrived by the deadline. Throws the group's failure.
  bool await_message(int from, uint32_t tag, const Deadline& deadline);

  // Waits until no operation is under way; false if the deadline passes first.
  bool wait_until_idle(const Deadline& deadline);
  // The group's first failure, after which all operations fail; ok if there is none.
  Status failure() const;
  // See Health::lost_among().
  Status lost_among(const std::vector<int>& ranks) const;
  // Throws Error(invalid_argument) in a child of fork().
  void check_process() const {
    if (mark_.inherited()) [[unlikely]]
      check(inherited_error());
  }

  // Ends every operation on every rank with Code::aborted. Never blocks for long.
  void abort(const std::string& reason);
  // Leaves the group: delivers sent data, and aborts operations under way. Later operations fail.
  void leave();
  // The transport to another rank, for people: "tcp over eth0".
  std::string path_to(int peer) const;

  // From now on every operation records the times of its steps. Throws Error if tracing is on.
  void begin_trace();
  // Ends tracing. Returns the traces of operations that are over, in the order of their calls.
  std::vector<std::shared_ptr<const Trace>> end_trace();

  // Registers memory for repeated collectives, see Island::register_buffer(). All ranks of an
  // island do so, while no operation is under way. Throws Error, also if the engine has no
  // registration.
  void register_buffer(void* pointer, size_t bytes);
  void deregister_buffer(void* pointer);
  // The number of calls in which ranks of this island have read each other's buffers in place.
  int64_t direct_calls() const;

 private:
  struct SubmitLocks;

  Status inherited_error() const;               // for calls in a child of fork()
  Island& island() const;                       // under the executor's lock; throws Error
  void require_idle(const char* caller) const;  // under the executor's lock; throws Error
  // Releases each lock as early as possible.
  Work submit_locked(const Spec& spec, Run::Buffers buffers, const CallOptions& options,
                     SubmitLocks locks);
  Work send_or_recv(Collective direction, Run::Buffers buffers, Dtype dtype, int64_t count,
                    int peer, uint32_t tag, const CallOptions& options);
  std::shared_ptr<Run> make_run(std::shared_ptr<const Plan> plan, Run::Buffers buffers,
                                const Operation& operation, const CallOptions& options,
                                const Run::TrialCall& trial = {});
  // Sets last_plan_ and last_trial_. Throws Error(invalid_argument).
  void take_plan(const Spec& spec);
  // The plan of the next call does without the rails that have failed; see rails.cc.
  void leave_out_lost_rails(std::chrono::nanoseconds bound);
  // Of a call of last_trial_; see trials.cc.
  std::shared_ptr<CodecTrial> make_trial(const Spec& spec);
  std::shared_ptr<Run> make_trial_run(Run::Buffers buffers, const Operation& operation,
                                      const CallOptions& options);
  void count_trial_call();
  Work start(std::shared_ptr<Run> run, const CallOptions& options, SubmitLocks locks);

  const std::unique_ptr<Group> group_;
  std::atomic<std::chrono::nanoseconds> timeout_;
  std::mutex submit_mutex_;  // guards the next five, so that numbers follow submission order
  size_t left_out_ = 0;      // rails
  std::shared_ptr<const Plan> last_plan_;   // mostly also the plan of the next call
  std::shared_ptr<CodecTrial> last_trial_;  // of last_plan_; null without an automatic codec
  uint64_t sequence_ = 0;                   // of the next collective
  uint64_t history_ = 0;                    // hash of all collectives so far
  TraceRecorder recorder_;
  std::mutex leave_mutex_;
  bool left_ = false;
  bool stuck_ = false;  // a thread that stands still keeps parts of the group
  const ProcessMark mark_;
  const int64_t process_;                                   // id of the process, for messages
  std::deque<std::shared_ptr<const Topology>> topologies_;  // all so far, for their readers
  std::atomic<const Topology*> topology_;                   // the last
};

}  // namespace hetcomm
