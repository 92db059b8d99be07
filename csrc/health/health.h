#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "health/control.h"
#include "health/news.h"
#include "health/rail_watch.h"

namespace hetcomm {

// Watches over one group. Detects ranks that died or left, calls that differ between ranks, and
// operations that stall. Floods the first cause to all ranks, and fails this rank's operations with
// the cause. Adds up the ranks' codec figures. Owned by the group. The progress thread polls it;
// submitting threads call record().
class Health : public Monitor, private ControlPlane::Owner {
 public:
  Health(Executor& executor, std::shared_ptr<RunQueue> queue, int rank, int size,
         const std::string& address);

  const std::string& contact() const { return control_.contact(); }
  // Connects to the neighbours, and begins to watch.
  void begin(const std::vector<std::string>& contacts, const std::string& secret,
             const Deadline& deadline);
  // Watches the networks of the rails, too. Comes before begin().
  void watch_rails(std::unique_ptr<RailWatch> rails) { rails_ = std::move(rails); }
  // With this lock, record() and report_refusal() do not wait. The executor's lock comes after it.
  using Lock = std::unique_lock<std::recursive_mutex>;
  Lock try_lock() { return Lock(mutex_, std::try_to_lock); }
  // Remembers a call before it is submitted, and compares it with the calls of stalled peers.
  void record(const CallDescriptor& call);
  // Remembers why this rank's next call was refused, and tells ranks that wait in this call.
  void report_refusal(const Status& why);
  // Adds up the figures of all ranks for a round of a CodecTrial, and gives every rank the total:
  // over a tree, whose edges are control connections. Each rank calls this once for each round.
  void report(const std::string& trial, int64_t round, const CodecFigures& own);
  // Tells the other ranks that this rank leaves in good order; at most once.
  void say_goodbye(const Deadline& deadline);
  // Closes all connections; ends the watch.
  void end();

  void poll() override;
  void failed(const Status& status) override;

 private:
  using PeerCall = std::pair<int, CallDescriptor>;
  // A rank has left.
  struct Departure {
    uint64_t calls;  // the number of collectives it took part in
    Clock::time_point at;
    std::string refusal;  // why its next call was refused; empty without a refusal
  };
  // The reason why a rank is missing in a collective.
  struct Refusal {
    Status why;
    bool reported = false;
  };

  void on_lost(int peer) override;
  void on_news(int origin, const std::string& bytes) override;
  void on_malformed(int peer, const std::string& why) override;
  void watch(int descriptor) override;
  void unwatch(int descriptor) override { executor_.unwatch(descriptor); }
  void flood_failure();
  void check_stalls();
  void flood_stall(const Run& run);
  void flood_refusal();
  void check_lost();
  void check_rails();
  void compare(int peer, const CallDescriptor& theirs);
  void note_stall(uint64_t sequence, int rank);
  void fail(const Status& status);
  void deliver();
  // figures.cc
  void on_figures(int origin, const News& news);
  void add_figures(const News& news);
  void pass_down(const News& total);
  void tell(int peer, const News& news);
  void tell_waiting();
  void decide_trials();

  Executor& executor_;
  std::shared_ptr<RunQueue> queue_;
  const int rank_, size_;
  std::recursive_mutex mutex_;          // guards the following members
  std::vector<int> early_descriptors_;  // made before begin()
  bool watching_ = false, flooded_failure_ = false, said_goodbye_ = false;
  Status cause_;            // the first failure noticed here
  bool delivered_ = false;  // to the executor
  ControlPlane control_;
  std::unique_ptr<RailWatch> rails_;
  std::map<int, Clock::time_point> lost_;  // connections that ended without a goodbye
  std::map<int, Departure> departures_;
  static constexpr size_t kRemembered = 64;
  std::array<CallDescriptor, kRemembered> calls_{};  // by sequence
  uint64_t next_call_ = 0;                           // sequence after the newest recorded
  std::multimap<uint64_t, PeerCall> early_calls_;    // of peers, ahead of this rank; by sequence
  uint64_t stalls_seen_ = 0;                      // sequence + 1 of the newest stall of this rank
  Clock::time_point last_stall_news_{};           // when this rank last flooded a stall
  std::map<uint64_t, std::vector<int>> waiting_;  // by sequence: ranks that wait in the call
  std::optional<Refusal> refusal_;                // of this rank's next call
  std::map<uint64_t, Refusal> peer_refusals_;     // of other ranks, by sequence
  struct Tally {
    CodecFigures sum;
    int parts = 0;  // this rank, and the subtrees of its children
  };
  std::map<std::pair<std::string, int64_t>, Tally> tallies_;  // by trial and round
  std::vector<News> totals_;                                  // not yet given to their trials
  std::deque<std::pair<int, std::string>> untold_;  // news for neighbours that have not connected
};

}  // namespace hetcomm
