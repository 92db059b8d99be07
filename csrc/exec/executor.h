#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "exec/numbers.h"
#include "exec/run.h"
#include "transport/transports.h"

namespace hetcomm {

// The runs of one communicator, in the order in which they were submitted. Owned by the
// communicator; used under the executor's lock.
struct RunQueue {
  const CommunicatorNumber number;
  std::unique_ptr<Paths> paths;
  std::deque<std::shared_ptr<Run>> pending;   // collectives that wait for an island lane
  std::deque<std::shared_ptr<Run>> messages;  // sends and recvs that wait for earlier ones
  std::vector<std::shared_ptr<Run>> active;
  std::vector<std::shared_ptr<Run>> unreleased;  // failed: see Run::unreleased()
  std::vector<bool> lane_busy;                   // by island lane
  bool launching = false;  // a thread calls a native library for a run; others leave them alone
  Status failure;          // the first cause; later runs fail with it at once

  bool busy() const { return !messages.empty() || !pending.empty() || !active.empty(); }
};

// Something that the progress thread looks after besides runs, such as control connections.
// poll() is called on the progress thread, without the lock, whenever one of its descriptors is
// readable and at least once a second; failed() after it has thrown.
class Monitor {
 public:
  static constexpr std::chrono::milliseconds interval{500};
  virtual ~Monitor() = default;
  virtual void poll() = 0;
  virtual void failed(const Status& status) = 0;
};

// Runs plans: the only owner of threads in a process. Whoever waits for a run moves everything
// forward; the one progress thread does so while nobody waits. Waiting spins briefly, then yields,
// then sleeps until the network, a neighbour in shared memory or another thread has news.
// Thread-safe. One per process, shared by all communicators, unless ranks of one group are threads
// (tests make their own).
class Executor {
 public:
  explicit Executor(std::unique_ptr<Transports> transports);
  ~Executor();
  Executor(const Executor&) = delete;

  // Ends the thread; for process exit. Waiting threads still move things forward.
  void stop();

  bool inherited() const { return mark_.inherited(); }  // it belongs to the parent of this process
  Transports& transports() { return *transports_; }     // used under the lock, see there
  // The lock under which paths, queues and runs are used. Waiting threads, who take and leave it
  // all the time, make way for whoever asks for it so.
  std::unique_lock<std::mutex> lock();
  // None if another thread has it.
  std::unique_lock<std::mutex> try_lock() { return {mutex_, std::try_to_lock}; }

  // How peers in shared memory wake this process, and how to wake them.
  const std::string& wake_address() const { return wake_address_; }
  void wake(const std::string& address) const;

  // More ranks than processors on this host: yield rather than spin.
  void set_oversubscribed(bool oversubscribed) {
    if (oversubscribed) oversubscribed_ = true;  // a small group does not give processors back
  }

  void attach(std::shared_ptr<RunQueue> queue);
  // Afterwards no run of the queue is touched any more. Those still active, which the transport has
  // not let go of, are announced with their failure; the caller keeps the queue alive.
  void detach(const std::shared_ptr<RunQueue>& queue);

  // `will_wait`: the caller calls wait() at once, so the progress thread need not be woken.
  // `held`: the lock, if the caller has it. Returns what was completed meanwhile: announce() it
  // without any lock, since listeners may submit.
  [[nodiscard]] std::vector<std::shared_ptr<Run>> submit(RunQueue& queue, std::shared_ptr<Run> run,
                                                         bool will_wait,
                                                         std::unique_lock<std::mutex> held = {});
  // Of a run that is recorded, after submit() and without any lock: waits until it is in the
  // stream. One that does not get there fails.
  void await_recorded(RunQueue& queue, const std::shared_ptr<Run>& run);
  // Tells all threads that wait for these runs; without any lock. Returns the aftermath of
  // `awaited`, the caller's own run, which the caller lets go of once it no longer moves things
  // forward.
  Completion::Aftermath announce(std::vector<std::shared_ptr<Run>>& completed,
                                 const Run* awaited = nullptr);
  // Moves things forward until the run is done or `deadline` has passed; true if it is done.
  bool wait(Run& run, const Deadline& deadline);
  // Fails every run of the queue, now and later, with its first failure.
  void fail(RunQueue& queue, const Status& status);
  // Moves the transport until `finished` holds (checked under the lock) or the deadline passes.
  bool drain(const std::function<bool()>& finished, const Deadline& deadline);

  void add(std::shared_ptr<Monitor> monitor);
  void watch(int descriptor);  // belongs to some monitor
  void unwatch(int descriptor);
  void remove(const Monitor* monitor);  // afterwards poll() is not running and never runs again
  void wake_progress_thread();          // which then looks at everything

 private:
  using Completed = std::vector<std::shared_ptr<Run>>;
  // Of a thread: as long as it has one, other threads need not progress.
  enum class Role : uint8_t { none, waiter, progress };
  static thread_local Role role;
  static thread_local const Run* recorded_here;  // that this thread records into a graph

  bool progress_all(Completed& completed);  // under the lock
  bool progress_transports();               // likewise
  // Neither throws: the groups concerned fail instead.
  bool progress_queue(RunQueue& queue, Completed& completed);
  bool try_progress(RunQueue& queue, Completed& completed);  // may throw
  bool reap(RunQueue& queue, Completed& completed);
  void fail_queue(RunQueue& queue, const Status& status, Completed& completed);
  void activate(RunQueue& queue);
  void activate_messages(RunQueue& queue);
  void start(RunQueue& queue, Run& run, int lane);
  void launch(RunQueue& queue, const std::function<void()>& call);
  void check_deadlines(Completed& completed);
  bool any_active() const;
  void yield_processor();
  void begin_waiting();
  void end_waiting();  // see that another thread goes on
  // Sleeps until there is news, at most `bound`; not at all once `awaited` is done. Takes the lock
  // and lets it go again.
  Completion::Aftermath sleep(std::chrono::nanoseconds bound, const Run* awaited = nullptr);
  void sleeping(bool asleep);
  // A thread of this name; throws Error(transport).
  std::thread start_thread(const char* name, void (Executor::*life)());
  void loop();  // the life of the progress thread
  // The deputy stands in for the progress thread while that thread is in a native library.
  void start_deputy();  // throws Error(transport)
  void deputy_loop();
  // The turns of the progress thread or its deputy so far.
  struct Turns {
    uint32_t idle = 0;  // turns in a row in which nothing moved
    Clock::time_point last_poll = Clock::now();
    Clock::time_point alert_until{};  // a peer sent news, and may go on to close its links
  };
  void safe_turn(Turns& turns);
  void turn(Turns& turns);
  void poll_monitors();

  const ProcessMark mark_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<RunQueue>> queues_;
  // Whose memory transports may be given. They use the context of the calling thread.
  std::shared_ptr<Device> transport_device_;
  // What runs wait for: of the round under way, and of the last whole round.
  struct Awaited {
    bool network = false, device = false;
    bool same_processor = false;  // a rank on the processor of this thread
  };
  Awaited round_;
  std::atomic<bool> awaits_network_{false}, awaits_device_{false}, awaits_same_processor_{false};
  uint32_t idle_rounds_ = 0;
  uint32_t rounds_ = 0;
  std::atomic<bool> oversubscribed_{false};
  std::atomic<uint32_t> yields_on_processor_{0};
  std::atomic<uint32_t> spins_{32};   // how long wait() spins: longer while that succeeds
  std::atomic<int> waiters_{0};       // threads inside wait() or drain()
  std::atomic<int> runs_{0};          // pending or active
  std::atomic<int> sleepers_{0};      // threads inside epoll_wait
  std::atomic<int> lock_waiters_{0};  // threads that wait for the lock outside wait()

  const Descriptor data_events_;     // epoll: transports, wake socket, completion event
  const Descriptor control_events_;  // epoll: monitors' descriptors, progress event
  const Descriptor wake_socket_;
  const Descriptor completion_event_;  // eventfd: a run was completed by another thread
  const Descriptor progress_event_;    // eventfd: for the progress thread
  std::string wake_address_;
  const std::unique_ptr<Transports> transports_;

  std::recursive_mutex monitor_mutex_;
  std::vector<std::shared_ptr<Monitor>> monitors_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
  std::atomic<bool> in_library_{false};  // the progress thread is in a native library
  std::mutex deputy_mutex_;
  std::condition_variable deputy_wanted_;
  std::thread deputy_;  // made when it is first needed
};

}  // namespace hetcomm
