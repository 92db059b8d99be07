#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/start_thread.h"
#include "exec/numbers.h"
#include "exec/run.h"
#include "transport/transports.h"

namespace hetcomm {

class Monitor;

// The runs of one communicator, in submission order. Owned by the communicator and used under the
// executor's lock.
struct RunQueue {
  explicit RunQueue(int ranks) : senders(ranks) {}

  const SenderNumbers senders;
  std::unique_ptr<Paths> paths;
  std::deque<std::shared_ptr<Run>> pending;   // collectives that wait for an island lane
  std::deque<std::shared_ptr<Run>> messages;  // messages that wait for earlier ones or a sender
  std::vector<std::shared_ptr<Run>> active;
  std::vector<std::shared_ptr<Run>> unreleased;  // failed: see Run::unreleased()
  std::vector<bool> lane_busy;                   // by island lane
  bool held = false;       // the first pending run was held up, see Executor::held_by()
  bool launching = false;  // a thread calls a native library for the queue, without the lock
  Status failure;          // the first failure; all later runs fail with it at once
  FlightRecorder recorder{FlightRecorder::chosen_operations()};
  bool disputed = false;                    // a run is, or was: see Run::disputed()
  std::weak_ptr<Monitor> monitor;           // tells the other ranks of the failure
  std::map<int, Clock::time_point> silent;  // ranks without a sign of life, and since when
  // For whom a collective close to its timeout likely waits.
  struct Culprit {
    uint64_t sequence;
    std::string words;
    int rank;                        // -1: several
    Clock::time_point known, until;  // it counts from, and to
  };
  std::optional<Culprit> culprit;
  std::map<std::string, std::shared_ptr<CodecTrial>> trials;  // by name

  bool busy() const { return !messages.empty() || !pending.empty() || !active.empty(); }
};

// "rank 3 has given no sign of life for 2 s: it is stopped ..."
std::string describe_silence(int rank, std::chrono::duration<double> time);

// Work of the progress thread besides runs, such as control connections. The thread calls poll()
// without the lock: when a watched descriptor is readable, and once per `interval` at least. An
// exception of poll() goes to failed().
class Monitor {
 public:
  static constexpr std::chrono::milliseconds interval{500};
  virtual ~Monitor() = default;
  virtual void poll() = 0;
  virtual void failed(const Status& status) = 0;
  // Tells the other ranks of the queue's failure, and waits for a moment until they have the news.
  // Called without any lock, before a caller hears of the failure and may end the process.
  virtual void tell_failure() {}
};

// For Executor::lock_within(): a library may stand still while it has the executor's lock.
inline constexpr std::chrono::milliseconds kLockBound(200);

// Runs plans. The executor owns all threads that progress runs. A thread that waits for one run
// progresses all runs; the one progress thread does so while no thread waits. A waiting thread
// spins briefly, then yields, then sleeps until the network, a neighbour in shared memory or
// another thread has news. All communicators of a process share one executor, but ranks of one
// group that are threads of one process have an executor each. Thread-safe.
class Executor {
 public:
  using Completed = std::vector<std::shared_ptr<Run>>;

  explicit Executor(std::unique_ptr<Transports> transports);
  ~Executor();
  Executor(const Executor&) = delete;

  // Ends the threads; for process exit. Waiting threads still progress runs. False if a thread
  // stands still, as inside a library; it goes on with this executor.
  bool stop();

  bool inherited() const { return mark_.inherited(); }  // by this process from its parent
  Transports& transports() { return *transports_; }     // mostly used under the lock, see there
  // The lock under which paths, queues and runs are used. Waiting threads take the lock all the
  // time, and make way for a thread that calls lock(). Ends the process if a library keeps the lock
  // for the longest timeout of the operations and HETCOMM_LIBRARY_TIMEOUT.
  std::unique_lock<std::mutex> lock();
  // Empty if another thread has the lock.
  std::unique_lock<std::mutex> try_lock() { return {mutex_, std::try_to_lock}; }
  // Like lock(), but empty if another thread keeps the lock so long, as inside a library that
  // stands still.
  std::unique_lock<std::mutex> lock_within(std::chrono::nanoseconds time);

  // The address at which peers in shared memory wake this process.
  const std::string& wake_address() const { return wake_address_; }
  void wake(const std::string& address) const;  // a peer

  // With more ranks than processors on this host, waiting threads yield and never spin.
  void set_oversubscribed(bool oversubscribed) {
    if (oversubscribed) oversubscribed_ = true;  // a later, smaller group does not change that
  }

  // `timeout`: of the group's operations, unless they have their own.
  void attach(std::shared_ptr<RunQueue> queue, std::chrono::nanoseconds timeout);
  // The executor does not touch runs of the queue afterwards. A run is still active if a transport
  // has not released its memory; it ends with its failure. The caller keeps the queue alive.
  void detach(const std::shared_ptr<RunQueue>& queue);

  // `will_wait`: the caller calls wait() at once, so the progress thread need not wake up.
  // `held`: the lock, if the caller has it. Returns the runs that completed meanwhile. The caller
  // passes them to announce() without any lock, because listeners may submit.
  [[nodiscard]] Completed submit(RunQueue& queue, std::shared_ptr<Run> run, bool will_wait,
                                 std::unique_lock<std::mutex> held = {});
  // Waits until a captured run is in its stream, or has failed. After submit(), without any lock.
  void await_captured(RunQueue& queue, const std::shared_ptr<Run>& run);
  // Wakes all threads that wait for these runs, and has their listeners called. Without any lock.
  // Returns the aftermath of `awaited`, the caller's own run. The caller destroys the aftermath
  // once it no longer progresses runs.
  Completion::Aftermath announce(Completed& completed, const Run* awaited = nullptr);
  // Progresses all runs until `run` is done or the deadline has passed; true if `run` is done.
  bool wait(Run& run, const Deadline& deadline);
  // Progresses all runs until the rest of `run` is in streams, or the deadline has passed; true if
  // it is.
  bool wait_in_streams(const Run& run, const Deadline& deadline);
  // Fails every run of the queue, now and later, with the queue's first failure. False, and without
  // effect, if another thread keeps the lock so long.
  bool fail(RunQueue& queue, const Status& status, std::chrono::nanoseconds bound);
  // Progresses all runs until `finished` holds or the deadline has passed; true if it holds.
  // `finished` is called under the lock.
  bool drain(const std::function<bool()>& finished, const Deadline& deadline);

  void add(std::shared_ptr<Monitor> monitor);
  // Of a monitor. Regular polls serve a descriptor that the kernel does not watch.
  void watch(int descriptor);
  void unwatch(int descriptor);
  // poll() neither runs nor starts again afterwards. False if it stands still: it may go on later.
  bool remove(const Monitor* monitor);
  void wake_progress_thread();  // the thread then polls everything
  // The progress thread polls all monitors by then, even without news.
  void poll_by(Clock::time_point due);

 private:
  // While a thread has a role, other threads need not progress runs.
  enum class Role : uint8_t { none, waiter, progress };
  static thread_local Role role;
  static thread_local const Run* captured_here;  // this thread captures the run into a graph

  void tell_failures(const Completed& completed);
  // progress.cc. Under the lock; true if anything moved. Only try_progress() may throw: after an
  // exception the others fail the groups concerned.
  bool progress_all(Completed& completed);
  bool progress_transports();
  bool progress_queue(RunQueue& queue, Completed& completed);
  bool try_progress(RunQueue& queue, Completed& completed);
  bool reap(RunQueue& queue, Completed& completed);
  void fail_queue(RunQueue& queue, const Status& status, Completed& completed);
  void activate(RunQueue& queue);
  void activate_messages(RunQueue& queue);
  const Run* held_by(const Run& run) const;
  void start(RunQueue& queue, Run& run, int lane);
  void check_deadlines(Completed& completed);
  // launching.cc
  void launch(RunQueue& queue, const std::function<void()>& call);
  // The deputy stands in for the progress thread while that thread is in a native library.
  void deputy_loop();
  void start_helpers();  // deputy and watcher; throws Error(vendor)
  // lock.cc
  void note_timeout(std::chrono::nanoseconds timeout);
  void look_at_lock();
  void tell_of_stuck_library(std::chrono::seconds stuck);
  // The watcher looks at the lock once a second, because every other thread may stand still in a
  // library.
  void watcher_loop();
  // waiting.cc
  // Sequentially consistent with waiters_: see docs/threading.md, "Memory ordering".
  bool any_active() const { return runs_.load() > 0; }
  void yield_processor();
  void begin_waiting();
  void end_waiting();  // another thread goes on
  // Sleeps until there is news, at most `bound`; not at all once `awaited` is done. Checks
  // deadlines after a real sleep. Without the lock. See announce() for what it returns.
  Completion::Aftermath sleep(std::chrono::nanoseconds bound, const Run* awaited = nullptr);
  void set_islands_sleeping(bool asleep);
  void loop();  // of the progress thread
  // The turns of the progress thread or its deputy so far.
  struct Turns {
    uint32_t idle = 0;  // turns in a row in which nothing moved
    Clock::time_point last_poll = Clock::now();
    Clock::time_point alert_until{};  // a peer sent news, and may close its links next
  };
  void safe_turn(Turns& turns);
  void turn(Turns& turns);
  void poll_monitors();

  const ProcessMark mark_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<RunQueue>> queues_;
  // Runs of all queues with calls of native libraries, as long as they have calls or copies to
  // make, in the order of submission.
  std::vector<std::shared_ptr<Run>> unlaunched_;
  // Transports use the context of this device, whose memory runs may give them.
  std::shared_ptr<Device> transport_device_;
  // What runs wait for. `round_`: of the round under way. The atomics below: of the last whole
  // round, for threads without the lock.
  struct Awaited {
    bool network = false, device = false;
    bool same_processor = false;  // a rank on the processor of this thread
  };
  Awaited round_;
  std::atomic<bool> awaits_network_{false}, awaits_device_{false}, awaits_same_processor_{false};
  uint32_t idle_rounds_ = 0;
  std::atomic<uint32_t> rounds_{0};
  std::atomic<bool> oversubscribed_{false};
  std::atomic<uint32_t> yields_on_processor_{0};
  std::atomic<uint32_t> spins_{32};   // how long wait() spins: longer while that succeeds
  std::atomic<int> waiters_{0};       // threads inside wait() or drain()
  std::atomic<int> runs_{0};          // pending or active
  std::atomic<int> sleepers_{0};      // threads inside epoll_wait
  std::atomic<int> lock_waiters_{0};  // threads that wait for the lock outside wait()
  static constexpr std::chrono::seconds kLook{1};
  const std::chrono::seconds library_bound_;                 // HETCOMM_LIBRARY_TIMEOUT; zero: none
  std::atomic<std::chrono::nanoseconds> longest_timeout_{};  // of groups and operations so far
  // Looks in a row at a lock that stays with one thread, and the round of the last one.
  std::atomic<Clock::time_point> next_look_{};
  std::atomic<uint32_t> last_look_{0}, looks_{0};

  const Descriptor data_events_;     // epoll: transports, wake socket, completion event
  const Descriptor control_events_;  // epoll: monitors' descriptors, progress event
  const Descriptor wake_socket_;
  const Descriptor completion_event_;  // eventfd: a run was completed by another thread
  const Descriptor progress_event_;    // eventfd: for the progress thread
  std::string wake_address_;
  const std::unique_ptr<Transports> transports_;

  std::atomic<Clock::time_point> next_poll_{Clock::time_point::max()};  // see poll_by()
  std::recursive_mutex monitor_mutex_;
  std::vector<std::shared_ptr<Monitor>> monitors_;
  std::atomic<bool> stop_{false};
  BoundedThread thread_;
  std::atomic<bool> in_library_{false};  // the progress thread is in a native library
  std::mutex deputy_mutex_;              // of the deputy's and the watcher's sleep
  std::condition_variable deputy_wanted_, watcher_ends_;
  BoundedThread deputy_, watcher_;  // of ranks with a device
  std::atomic<bool> warned_of_watches_{false};
};

}  // namespace hetcomm
