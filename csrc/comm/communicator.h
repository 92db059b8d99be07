#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/fork.h"
#include "comm/agreement.h"
#include "comm/engines.h"
#include "comm/health.h"
#include "comm/member.h"
#include "comm/rail_check.h"
#include "comm/store.h"
#include "exec/executor.h"
#include "plan/planner.h"
#include "transport/link_offers.h"

namespace hetcomm {

// An operation under way. Cheap to copy; the communicator may be destroyed first. In a child of
// fork() an operation of its parent that was not done is done, and has failed.
class Work {
 public:
  Work(std::shared_ptr<Executor> executor, std::shared_ptr<Run> run)
      : executor_(std::move(executor)), run_(std::move(run)) {}

  bool done() const { return run_->done() || run_->inherited(); }
  const Status& status() const;                         // valid once done()
  bool inherited() const { return run_->inherited(); }  // by this process from its parent
  // Waits until done, at most so long; whether it is. The operation goes on.
  bool done_within(std::chrono::nanoseconds time) const;
  // Waits until done; Code::timeout if that takes longer than `timeout`.
  Status wait(std::chrono::nanoseconds timeout) const {
    return done_within(timeout) ? status() : late(timeout);
  }
  Status wait() const { return wait(timeout()); }
  // How long wait() waits: until the operation has surely given up by itself.
  std::chrono::nanoseconds timeout() const { return run_->timeout() + std::chrono::seconds(5); }
  Status late(std::chrono::nanoseconds after) const;  // that it is not done after so long
  void when_done(std::function<void(const Status&)> listener) const;
  // Keeps `memory`, which holds the buffers, until nothing refers to them any more.
  void hold(std::shared_ptr<void> memory) const;
  // On a device: `stream` waits until the operation is over, and the host goes on at once. If the
  // operation fails, the stream goes on too; status() and later calls tell.
  Status order(Stream stream) const;
  std::string describe() const;
  // What it waits for, in words.
  std::string where() const;
  // Of a receive, once it is done: the rank that sent.
  int source() const { return run_->plan().spec.root; }
  // Once it is done: when its steps started and ended; null unless the communicator traced it.
  std::shared_ptr<const Trace> trace() const { return run_->traced(); }

 private:
  std::shared_ptr<Executor> executor_;
  std::shared_ptr<Run> run_;
};

// A group of ranks and everything they do together. Thread-safe; the ranks must submit collectives
// in the same order. Creation is collective and blocks until every rank has come. It belongs to the
// process that made it: in a child of fork() every call throws Error(invalid_argument), but for
// those that end it, which do nothing there.
class Communicator {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    std::string name = "default";                                // for messages
    std::chrono::nanoseconds timeout{std::chrono::minutes(30)};  // of set-up and of operations
    std::shared_ptr<Executor> executor;                          // of this process if null
    std::string host;    // identity of the host, probed if empty
    std::string vendor;  // whose memory the buffers are: HETCOMM_VENDOR if empty, else cpu
    int device = -1;     // index among the vendor's; HETCOMM_DEVICE or LOCAL_RANK if negative
  };
  // How an operation is called.
  struct CallOptions {
    bool will_wait = false;  // the caller waits at once: nothing needs to go on in the background
    std::optional<std::chrono::nanoseconds> timeout;  // the communicator's if absent
    // The stream whose work so far fills the buffers. Without it they are ready now.
    std::optional<Stream> stream;
  };

  // Throws Error on every rank if any rank cannot take part.
  Communicator(Store& store, Options options);
  // Leaves in good order: sent data is delivered; operations still under way are aborted.
  ~Communicator();
  Communicator(const Communicator&) = delete;

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }
  const Topology& topology() const { return *topology_; }
  std::chrono::nanoseconds timeout() const { return timeout_; }
  void set_timeout(std::chrono::nanoseconds timeout) { timeout_ = timeout; }

  // The device whose memory the buffers are; null if they are host memory.
  const std::shared_ptr<Device>& device() const { return device_; }

  // Starts a collective. The buffers hold input_count() and output_count() elements, may be null
  // when that is 0, and stay alive until the work is done. Throws Error(invalid_argument) on a bad
  // spec.
  Work submit(const Spec& spec, const void* input, void* output, const CallOptions& options);
  Work submit(const Spec& spec, const void* input, void* output) {
    return submit(spec, input, output, CallOptions{});
  }
  // The same for the spec of the call before, if it is one step and neither another thread nor an
  // operation under way can keep the caller; nothing if one might, and then nothing has happened.
  std::optional<Work> submit_at_once(const Spec& spec, const void* input, void* output,
                                     const CallOptions& options);
  // Throws Error(invalid_argument) in a child of fork().
  void check_process() const {
    if (mark_.inherited()) [[unlikely]]
      check(of_another_process());
  }
  // Throws what submit() would throw for this spec.
  void validate(const Spec& spec) {
    check_process();
    planner_->plan(spec, options_.rank);
  }
  // A collective that this rank was asked for cannot be, as whoever prepared it has found. The
  // others, who may wait for it, are told why.
  void refused(const Status& why);
  // Point to point: `count` elements, matched by (ranks, tag), in order.
  Work send(const void* data, Dtype dtype, int64_t count, int to, uint32_t tag,
            const CallOptions& options);
  Work recv(void* data, Dtype dtype, int64_t count, int from, uint32_t tag,
            const CallOptions& options);
  // From whoever sends first; into host memory. A message that a receive from its sender waits for
  // goes to that one.
  Work recv_any(void* data, Dtype dtype, int64_t count, uint32_t tag, const CallOptions& options);
  // Waits until a message of `from` with this tag has arrived that no receive waits for; false if
  // that takes longer. Throws the group's failure.
  bool await_message(int from, uint32_t tag, const Deadline& deadline);

  // Waits until no operation is under way; false if that takes longer.
  bool wait_until_idle(const Deadline& deadline);
  // Why the group is unusable; ok while it is not.
  Status failure() const;

  // Ends every operation on every rank with Code::aborted. Never blocks for long.
  void abort(const std::string& reason);
  // What leaving does, callable early (at process exit); later operations fail.
  void leave();
  // How this rank reaches another one, in words.
  std::string path_to(int peer) const;

  // From now on every operation keeps the times of its steps, until end_trace(), which returns
  // those of the operations that are over, in the order of their calls. Throws Error if it does
  // already.
  void begin_trace();
  std::vector<std::shared_ptr<const Trace>> end_trace();

  // Memory that collectives will use again and again, see Island::register_buffer(). All ranks of
  // an island register theirs, while none of their operations is under way. Throw Error, also where
  // the engine knows no such thing.
  void register_buffer(void* pointer, size_t bytes);
  void deregister_buffer(void* pointer);
  // Calls of this rank's island so far in which its ranks read each other's buffers in place.
  int64_t direct_calls() const;

 private:
  Status of_another_process() const;        // what a child of fork() is told
  Island& engine() const;                   // under the executor's lock; throws Error
  void check_idle(const char* what) const;  // likewise
  void set_up(Store& store, const Deadline& deadline);
  std::vector<Member> meet(Store& store, const Agreement& agreement,
                           std::shared_ptr<const Profile>& profile);
  // What a rank makes for others once the topology is known.
  struct Prepared {
    std::string island;     // by the first member of an island: what its engine needs
    std::string addresses;  // of transports that only some links need; mostly empty
    std::vector<FailedRail> failed_rails;

    std::string pack() const;
    static Prepared unpack(const std::string& bytes);
  };
  std::vector<Prepared> prepare(const IslandSetup& setup, Agreement& agreement, Offer& offer);
  // The topology without the rails that failed, equal on all ranks.
  void leave_out_failed_rails(const std::vector<Prepared>& prepared);
  void connect(const IslandSetup& setup, const std::vector<Prepared>& prepared,
               const Deadline& deadline);
  // Both ends of every link come to the same offer; see Link::offer().
  void settle_links(Agreement& agreement, std::vector<LinkOffers> all);
  // An end of the link between two ranks, with its addresses.
  LinkEnd addressed_end(int rank, int peer, const Member& member, const Prepared& prepared) const;
  // What this rank publishes in the store under `key`.
  Member introduce(Store& store, const std::string& key, std::shared_ptr<const Profile>& profile);
  // Gives the ranks that are threads of one process an executor each.
  void part_threads(Store& store, const Agreement& agreement, std::vector<Member>& members,
                    std::shared_ptr<const Profile>& profile);
  // What a rank has published under `key`.
  Member member(Store& store, const std::string& key, int peer, const Agreement& agreement) const;
  Work begin(std::shared_ptr<Run> run, const CallOptions& options);  // of a message
  // What every submission ends with, without any lock.
  Work submitted(std::shared_ptr<Run> run, std::vector<std::shared_ptr<Run>>& completed);
  Work message(Collective direction, const void* input, void* output, Dtype dtype, int64_t count,
               int peer, uint32_t tag, const CallOptions& options);
  struct SubmitLocks {                       // in the order in which they are taken
    std::unique_lock<std::mutex> numbering;  // submit_mutex_, always
    Health::Lock recording;                  // the others if the caller has them
    std::unique_lock<std::mutex> engine;
  };

  // Lets go of each lock as soon as what it guards is done.
  Work submit_locked(const Spec& spec, Run::Buffers buffers, const CallOptions& options,
                     SubmitLocks locks);
  std::shared_ptr<Run> make_run(std::shared_ptr<const Plan> plan, Run::Buffers buffers,
                                const CallDescriptor& call, uint32_t tag,
                                const CallOptions& options, bool recorded);
  bool recorded(const Plan& plan, const CallOptions& options) const;

  const Options options_;
  std::atomic<std::chrono::nanoseconds> timeout_;
  std::shared_ptr<Executor> executor_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<const Topology> topology_;
  std::unique_ptr<Planner> planner_;
  std::shared_ptr<RunQueue> queue_ = std::make_shared<RunQueue>();
  std::shared_ptr<Health> health_;
  std::optional<RailListeners> rail_listeners_;  // until it leaves
  std::mutex submit_mutex_;                      // sequence numbers follow submission order
  std::shared_ptr<const Plan> last_plan_;        // mostly the next call is like the last
  uint64_t sequence_ = 0;
  uint64_t history_ = 0;  // hash of all collectives so far
  std::atomic<bool> tracing_{false};
  std::mutex trace_mutex_;
  std::vector<std::shared_ptr<const Trace>> traces_;
  std::mutex leave_mutex_;
  bool left_ = false;
  const ProcessMark mark_;
  const int64_t process_;  // its id, for messages
};

}  // namespace hetcomm
