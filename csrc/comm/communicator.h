#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/fork.h"
#include "comm/trace_recorder.h"
#include "comm/work.h"

namespace hetcomm {

struct Group;

// A group of ranks and all that they do together. Thread-safe; the ranks must submit collectives in
// the same order. It belongs to the process that made it. In a child of fork() every call throws
// Error(invalid_argument), except those that end the communicator: they do nothing there.
class Communicator {
 public:
  struct CallOptions {
    bool will_wait = false;  // the caller waits at once: nothing needs to go on in the background
    std::optional<std::chrono::nanoseconds> timeout;  // the communicator's if absent
    // The stream whose work so far fills the buffers. Without it they are ready now.
    std::optional<Stream> stream;
  };

  explicit Communicator(std::unique_ptr<Group> group);  // of bootstrap()
  // Leaves in good order: delivers sent data, and aborts operations still under way.
  ~Communicator();
  Communicator(const Communicator&) = delete;

  int rank() const;
  int size() const;
  const Topology& topology() const;
  // The device whose memory the buffers are; null if they are host memory.
  const std::shared_ptr<Device>& device() const;
  std::chrono::nanoseconds timeout() const { return timeout_; }
  void set_timeout(std::chrono::nanoseconds timeout) { timeout_ = timeout; }

  // Starts a collective. The buffers hold the elements of buffer_counts(), may be null for none,
  // and stay alive until the work is done. Throws Error(invalid_argument) on a bad spec.
  Work submit(const Spec& spec, const void* input, void* output, const CallOptions& options);
  Work submit(const Spec& spec, const void* input, void* output) {
    return submit(spec, input, output, CallOptions{});
  }
  // The same, but never waits for another thread. Only for the spec of the previous call, and a
  // plan of one step. Returns nothing, and submits nothing, if another thread has a lock or
  // operations are under way.
  std::optional<Work> try_submit(const Spec& spec, const void* input, void* output,
                                 const CallOptions& options);
  // Throws what submit() would throw for this spec.
  void validate(const Spec& spec);
  // Tells the other ranks that this rank's next collective cannot be submitted, and why: they may
  // wait for it. For callers that find the error before submit().
  void report_refusal(const Status& why);
  // Point to point: `count` elements, matched by (ranks, tag), in order.
  Work send(const void* data, Dtype dtype, int64_t count, int to, uint32_t tag,
            const CallOptions& options);
  Work recv(void* data, Dtype dtype, int64_t count, int from, uint32_t tag,
            const CallOptions& options);
  // From the first sender, into host memory. A posted receive from that sender goes first.
  Work recv_any(void* data, Dtype dtype, int64_t count, uint32_t tag, const CallOptions& options);
  // Waits for a message of `from` with this tag that no posted receive matches; false if that takes
  // longer. Throws the group's failure.
  bool await_message(int from, uint32_t tag, const Deadline& deadline);

  // Waits until no operation is under way; false if that takes longer.
  bool wait_until_idle(const Deadline& deadline);
  // Why the group is unusable; ok while it is not.
  Status failure() const;
  // Throws Error(invalid_argument) in a child of fork().
  void check_process() const {
    if (mark_.inherited()) [[unlikely]]
      check(inherited_error());
  }

  // Ends every operation on every rank with Code::aborted. Never blocks for long.
  void abort(const std::string& reason);
  // Leaves the group early, as the destructor would; later operations fail.
  void leave();
  // How this rank reaches another rank, for people.
  std::string path_to(int peer) const;

  // From now on every operation keeps the times of its steps. Throws Error if they do already.
  void begin_trace();
  // Ends that; the traces of the operations that are over, in the order of their calls.
  std::vector<std::shared_ptr<const Trace>> end_trace();

  // Memory that collectives will use again and again, see Island::register_buffer(). All ranks of
  // an island register theirs, while none of their operations is under way. Throw Error, also where
  // the engine knows no such thing.
  void register_buffer(void* pointer, size_t bytes);
  void deregister_buffer(void* pointer);
  // Calls of this rank's island so far in which its ranks read each other's buffers in place.
  int64_t direct_calls() const;

 private:
  struct SubmitLocks;

  Status inherited_error() const;               // of calls in a child of fork()
  Island& island() const;                       // under the executor's lock; throws Error
  void require_idle(const char* caller) const;  // under the executor's lock; throws Error
  // Releases each lock as soon as it is not needed any more.
  Work submit_locked(const Spec& spec, Run::Buffers buffers, const CallOptions& options,
                     SubmitLocks locks);
  Work send_or_recv(Collective direction, Run::Buffers buffers, Dtype dtype, int64_t count,
                    int peer, uint32_t tag, const CallOptions& options);
  std::shared_ptr<Run> make_run(std::shared_ptr<const Plan> plan, Run::Buffers buffers,
                                const CallDescriptor& call, uint32_t tag,
                                const CallOptions& options);
  Work start(std::shared_ptr<Run> run, const CallOptions& options, SubmitLocks locks);

  const std::unique_ptr<Group> group_;
  std::atomic<std::chrono::nanoseconds> timeout_;
  std::mutex submit_mutex_;                // sequence numbers follow submission order
  std::shared_ptr<const Plan> last_plan_;  // mostly the next call is like the last
  uint64_t sequence_ = 0;
  uint64_t history_ = 0;  // hash of all collectives so far
  TraceRecorder recorder_;
  std::mutex leave_mutex_;
  bool left_ = false;
  const ProcessMark mark_;
  const int64_t process_;  // its id, for messages
};

}  // namespace hetcomm
