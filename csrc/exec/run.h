#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fork.h"
#include "exec/codec_trial.h"
#include "exec/completion.h"
#include "exec/device_run.h"
#include "exec/feedback.h"
#include "exec/flight_recorder.h"
#include "exec/island_steps.h"
#include "exec/message_steps.h"
#include "exec/trace.h"

namespace hetcomm {

// One execution of a plan. A run starts each step once the steps before it are complete, and hands
// the step to its performer: MessageSteps, IslandSteps, HostSteps or DeviceSteps. A communicator
// creates a run; the executor progresses it under the lock. completion() and status() are safe from
// any thread.
class Run {
 public:
  struct Buffers {
    const void* input = nullptr;
    void* output = nullptr;
  };

  // The call of a run with an automatic codec.
  struct TrialCall {
    std::shared_ptr<CodecTrial> trial;
    int64_t number = 0;
    // Of a call that was not decided when it was submitted: the plan if nothing is encoded.
    std::shared_ptr<const Plan> plain;
  };

  // The buffers stay alive until the run is over. They are memory of `device`, or host memory if
  // `device` is null.
  Run(std::shared_ptr<const Plan> plan, Buffers buffers, Operation operation,
      std::chrono::nanoseconds timeout, std::shared_ptr<Device> device = nullptr);
  ~Run();
  Run(const Run&) = delete;

  // Before submission.
  DeviceRun* device() { return device_.get(); }  // null on host memory
  // The residual of a call with feedback. Throws as Residual::on_host() does.
  void set_residual(std::shared_ptr<Residual> residual);
  const std::shared_ptr<Residual>& residual() const { return residual_; }
  std::shared_ptr<const Trace> begin_trace();  // of this run
  // A receive from any rank gets its plan from `plan_for`, once the sender is known.
  using PlanFor = std::function<std::shared_ptr<const Plan>(int sender)>;
  void set_plan_for(PlanFor plan_for) { plan_for_ = std::move(plan_for); }
  void set_trial_call(TrialCall call) { trial_call_ = std::move(call); }

  bool inherited() const { return mark_.inherited(); }  // by this process from its parent
  bool captured() const { return device_ && device_->captured(); }  // into a graph
  const CallDescriptor& call() const { return operation_.call; }
  const Plan& plan() const { return *plan_; }
  std::string describe() const { return hetcomm::describe(plan_->spec, operation_); }
  std::chrono::nanoseconds timeout() const { return timeout_; }
  bool done() const { return completion_.done(); }
  const Status& status() const { return status_; }               // valid once done()
  std::shared_ptr<const Trace> trace() const { return trace_; }  // null unless begun
  Completion& completion() { return completion_; }
  // A long send of host memory: the thread that starts the run copies the data.
  bool slow_to_start() const;
  // Publishes completion to waiters; without the lock.
  Completion::Aftermath announce();

  // The following members need the executor's lock.
  // At submission. `recorder` outlives the run's progress.
  void record_in(FlightRecorder& recorder) {
    recorder_ = &recorder;
    record_ = recorder.submit(plan_->spec, operation_);
  }
  uint64_t record() const { return record_; }  // the number of its record; 0 without one
  std::vector<int> steps_under_way() const;
  bool find_sender(const Paths& paths);  // false if no message has arrived yet
  // False while the ranks have not decided whether this run encodes.
  bool decided() const {
    return !trial_call_.trial || trial_call_.trial->decided(trial_call_.number);
  }
  // `lane`: of the island; -1 for a message, and for a plan without steps.
  void start(Paths& paths, int lane);
  // Does what can be done without waiting; true if anything moved.
  bool progress();
  // The run ends with `status` as soon as nothing refers to its buffers any more.
  void fail(const Status& status);
  void finish();  // the run ends as it stands; progress() does nothing afterwards
  // All that is left of the run is in streams, or the run is over. No stream ever waits for the
  // host, see docs/devices.md.
  bool in_streams() const;
  // `stream` waits for what is left, once in_streams() holds; the host does not wait. Returns the
  // failure of a run that is over.
  Status block_stream(Stream stream) const;
  // An error if work that is captured in `stream` would wait for this run.
  Status check_not_captured(Stream stream) const;

  bool started() const { return paths_ != nullptr; }
  bool finished() const { return finished_; }
  // Ranks disagree about this collective. The run waits for a moment, so that its monitor can find
  // out who called what.
  bool disputed() const { return disputed_ && !finished_ && status_.ok(); }
  const Status& dispute() const { return consequence_; }  // what this rank knows by itself
  int lane() const { return lane_; }
  std::string where() const;  // "waiting at step 5: recv from rank 3"
  bool behind_stream() const { return device_ && device_->behind_stream(); }  // of the caller
  // Every message of the run, if any, is posted, so later messages may start.
  bool posted() const { return !messages_ || messages_->posted(); }
  // All island steps, if any, are in the engine's stream.
  bool enqueued() const { return !island_ || island_->enqueued(); }
  // Calls of a native library in the engine's stream wait for the other members of the island.
  bool launches() const { return device_ && !plan_->schedule.island_steps.empty(); }
  // Such a run puts nothing more into streams. Its copies count: another rank may wait for one, and
  // behind a later call in a shared queue the copy would wait for that rank.
  bool launched() const {
    if (finished_ || !status_.ok()) return true;
    return started() && enqueued() && (!device_ || device_->steps().enqueued());
  }
  bool same_thread(const Run& other) const { return device_->thread() == other.device_->thread(); }
  bool uses_network() const { return messages_ && !messages_->idle(); }
  bool uses_device() const;
  bool awaits_same_processor() const { return same_processor_; }  // see Island::Progress
  // The run is over, but the transport, the engine or the device still refers to its buffers. A
  // transport may hold a receive of which a dead peer sent only a part. The owner keeps the run
  // until poll_release() finds the buffers released.
  bool unreleased() const { return finished_ && !released(); }
  void poll_release();

  // Comes after submission, for runs that are not over by then. Most runs are, and read no clock.
  void begin_timeout() { deadline_.emplace(timeout_); }
  const Deadline& deadline() const { return *deadline_; }
  std::chrono::nanoseconds age() const { return timeout_ - deadline_->left(); }

 private:
  void begin_step(int index);  // for recorder and trace
  void start_step(int index);
  void start_own(int index);  // a step of Performer::rank
  Status perform(const Step& step);
  // A plan without steps, as of a group of one rank, still comes after the caller's stream.
  bool awaits_fill();
  bool may_post(int index);
  void post(int index);
  bool post_in_order();
  bool progress_island();
  bool poll_messages();
  bool poll_device();
  void complete(int index);
  void fail_message(int index, const Status& status);
  void await_cause(const Status& status);
  void begin_dispute(const Status& status);
  bool released() const;
  Status at_step(int index, const Status& status) const;

  const ProcessMark mark_;
  std::shared_ptr<const Plan> plan_;
  PlanFor plan_for_;  // until the sender is known
  TrialCall trial_call_;
  const Operation operation_;
  const std::chrono::nanoseconds timeout_;
  std::optional<Deadline> deadline_;
  FlightRecorder* recorder_ = nullptr;
  uint64_t record_ = 0;
  std::shared_ptr<Trace> trace_;  // mostly null
  RunMemory memory_;
  std::shared_ptr<Residual> residual_;
  std::unique_ptr<std::byte[]> scratch_;
  Paths* paths_ = nullptr;
  int lane_ = 0;

  // The performers that the plan needs.
  std::optional<MessageSteps> messages_;
  std::optional<IslandSteps> island_;
  std::unique_ptr<DeviceRun> device_;  // apart, to keep runs of host memory small

  std::vector<int> waiting_;   // by step: the number of incomplete steps before it
  std::vector<int> ready_;     // steps to start, the last first
  std::vector<int> unfilled_;  // messages to post once the caller's stream has filled the buffers
  size_t next_message_ = 0;    // of a user's message: the step to post next
  int left_ = 0;               // incomplete steps
  bool same_processor_ = false;

  Status status_;
  Clock::time_point failed_at_;
  Status consequence_;  // probably caused by another failure; status_ after 3 s without news of one
  Clock::time_point consequence_at_;
  bool finished_ = false;
  bool disputed_ = false;
  Completion completion_;
};

}  // namespace hetcomm
