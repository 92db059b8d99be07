#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fork.h"
#include "exec/device_steps.h"
#include "exec/paths.h"
#include "exec/trace.h"
#include "plan/plan.h"

namespace hetcomm {

// One execution of a plan. Created by a communicator, moved forward only under the executor's
// lock; done() and status() are safe from any thread.
class Run {
 public:
  struct Buffers {
    const void* input = nullptr;
    void* output = nullptr;
  };

  // The buffers stay alive until done(); they are memory of `device`, or of the host if it is null.
  Run(std::shared_ptr<const Plan> plan, Buffers buffers, CallDescriptor call, uint32_t user_tag,
      std::chrono::nanoseconds timeout, std::shared_ptr<Device> device = nullptr);
  ~Run();
  Run(const Run&) = delete;

  // Before it starts: the buffers are ready when what is on `stream` by now is over. `recorded`:
  // the stream is being recorded into a graph, and so is the run.
  Status follow(Stream stream, bool recorded);
  bool recorded() const { return recorded_; }
  // Before it is submitted: from now on it keeps the times of its steps.
  std::shared_ptr<const Trace> trace() {
    trace_ = std::make_shared<Trace>(Trace{.plan = plan_});
    return trace_;
  }
  std::shared_ptr<const Trace> traced() const { return trace_; }  // null unless it was to
  // On a device, before it starts and without the lock: gets memory and compiles kernels, for which
  // a runtime may wait for all that its device does. Throws Error(vendor).
  void prepare(const DeviceKernels* kernels);
  // Before it starts, of a receive from whoever sends: how to make its plan once that is known.
  using PlanFor = std::function<std::shared_ptr<const Plan>(int sender)>;
  void await_sender(PlanFor plan) { plan_for_ = std::move(plan); }
  // Under the lock: looks who has sent; false if nobody has yet.
  bool find_sender(const Paths& paths);
  // `stream` waits until the run is over; the host does not. Under the lock.
  Status order(Stream stream);

  // `lane` is the island lane it may use.
  void start(Paths& paths, int lane);
  // Does what can be done without waiting; true if anything moved. Under the lock.
  bool progress();
  // Ends the run with `status` as soon as nothing refers to its buffers any more. Under the lock.
  void fail(const Status& status);

  bool started() const { return paths_ != nullptr; }
  bool finished() const { return finished_; }  // under the lock
  // Under the lock: it ends as it stands, and nothing moves it any more.
  void finish();
  bool uses_network() const { return network_; }  // under the lock: messages are in flight
  bool crowded() const { return crowded_; }       // under the lock: see Island::Progress
  // Under the lock: what it does inside the island is in the engine's stream, so that later runs
  // may follow.
  bool begun() const;
  // To start it may take long: what it sends is copied by whoever does.
  bool keeps_caller() const;
  // Under the lock: every message of it is with the transport, so that later ones may follow.
  bool posted() const { return unposted_ == 0; }
  bool uses_device() const;  // under the lock: a device is at work for it
  int64_t scratch_bytes() const {
    return (plan_->scratch_count + plan_->staging_count) * static_cast<int64_t>(element_);
  }
  bool done() const { return done_.load(); }
  bool inherited() const { return mark_.inherited(); }  // it belongs to the parent of this process
  const Status& status() const { return status_; }      // valid once done()
  std::chrono::nanoseconds timeout() const { return timeout_; }
  // Under the lock, of a run that is not over as soon as it is submitted (few need the clock).
  void begin_timeout() { deadline_.emplace(timeout_); }
  const Deadline& deadline() const { return *deadline_; }  // after begin_timeout(), as is age()
  std::chrono::nanoseconds age() const { return timeout_ - deadline_->left(); }
  const CallDescriptor& call() const { return call_; }
  const Plan& plan() const { return *plan_; }
  int lane() const { return lane_; }
  // "all_reduce sum float32 x 4 #7".
  std::string describe() const;
  // What it does: "waiting at step 5: recv from rank 3".
  std::string where() const;

  // Completion leaves this to do: to tell listeners and to let go of held memory. Either may block,
  // in the end for the interpreter's lock.
  struct Aftermath {
    std::vector<std::function<void(const Status&)>> listeners;
    std::vector<std::shared_ptr<void>> held;

    bool empty() const { return listeners.empty() && held.empty(); }
  };
  // Publishes completion to waiters; without the lock.
  Aftermath announce();
  // Keeps `memory` alive until nothing refers to the buffers any more, which after a failure may be
  // later than done().
  void hold(std::shared_ptr<void> memory);
  // Done, but the transport, the island or the device has not let go of the buffers: it may keep a
  // message of which a dead peer sent only a part. Whoever owns the run then keeps it until it is
  // settled. Under the lock.
  bool unsettled() const { return finished_ && !settled(); }
  // Under the lock, of an unsettled run: looks who has let go by now.
  void settle();
  // `listener` is called once, after completion, by run_callback(), or at once if it is done.
  void when_done(std::function<void(const Status&)> listener);

 private:
  std::byte* address(const Range& range) const;
  MemoryKind memory_of(const Range& range) const;
  void start_step(int index);
  void complete(int index);
  void post(int index);
  void fail_message(int index, const Status& status);
  bool post_in_order();
  Event island_event() const;
  void start_copy(int index);
  void start_reduce(int index);
  bool may_post(int index);
  Scale scale() const;
  bool settled() const;
  void look_at_island();
  bool progress_island();
  void launch(Island& island);
  void give_up(const Status& status);
  bool poll_messages();
  bool poll_device();
  Status at_step(int index, const Status& status) const;
  Status verify(int index, const Request& request) const;

  const ProcessMark mark_;
  std::shared_ptr<const Plan> plan_;
  PlanFor plan_for_;  // while the sender is not known
  Buffers buffers_;
  CallDescriptor call_;
  uint64_t hash_ = 0;  // of one with messages
  uint32_t user_tag_;
  std::chrono::nanoseconds timeout_;
  std::optional<Deadline> deadline_;
  Paths* paths_ = nullptr;
  int lane_ = 0;
  size_t element_;
  std::shared_ptr<Device> device_;
  Event filled_ = nullptr;              // on the stream that fills the buffers
  std::shared_ptr<Device::Flag> over_;  // what streams wait for, if any do
  bool recorded_ = false;
  Event recording_ = nullptr;  // of a recorded run: where it is over within the graph

  std::shared_ptr<Trace> trace_;  // mostly null
  std::unique_ptr<std::byte[]> scratch_;
  DeviceBlock device_scratch_, staging_;
  std::optional<DeviceSteps> device_steps_;
  std::vector<int> waiting_;  // per step: dependencies not yet complete
  std::vector<int> ready_;    // steps to start, the last first
  size_t next_island_ = 0;
  int active_island_ = -1;
  bool launching_ = false;  // the engine is being called without the lock
  bool in_island_ = false;  // the engine has a call of it, over or not, that did not succeed
  Clock::time_point failed_at_;
  Status given_up_;  // a neighbour ended the operation, or a link broke
  Clock::time_point given_up_at_;
  IslandCall island_call_;
  std::unique_ptr<Request[]> requests_;  // per step
  std::vector<int> in_flight_;           // send and recv steps posted
  int unposted_ = 0;                     // those not yet posted
  size_t next_message_ = 0;              // of a send or recv of the user: the next step to look at
  int left_ = 0;                         // steps not yet complete
  bool network_ = false;
  bool crowded_ = false;
  bool awaits_caller_ = false;      // messages from or to home wait for the caller's stream
  std::vector<int> held_messages_;  // which of a collective
  bool finished_ = false;
  std::atomic<bool> let_go_{false};  // finished, and nothing refers to the buffers any more

  Status status_;
  std::atomic<bool> done_{false};
  // It has listeners, or holds memory. Like done_ sequentially consistent: whoever completes the
  // run stores that and looks for watchers, a watcher stores this and looks whether the run is
  // done.
  std::atomic<bool> watched_{false};
  std::mutex listener_mutex_;
  std::vector<std::function<void(const Status&)>> listeners_;
  std::vector<std::shared_ptr<void>> held_;
};

// Folds a call descriptor into the hash that travels in tags.
uint64_t hash(const CallDescriptor& call);

}  // namespace hetcomm
