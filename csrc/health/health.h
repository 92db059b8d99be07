#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "exec/executor.h"
#include "health/control.h"
#include "health/group_state.h"
#include "health/news.h"
#include "health/pace.h"
#include "health/rail_watch.h"

namespace hetcomm {

// What one rank counted in a group.
struct GroupTotals {
  std::string group;
  int rank = 0;
  std::array<Totals, kCollectives> collectives{};  // times in ns
  uint64_t stalls = 0;                             // noted stalls of collectives
  bool failed = false;
  // On rank 0, by rank: the compared calls to which it came last; `compared` in all.
  std::vector<uint64_t> late;
  uint64_t compared = 0;
};

class PaceWatch;

// Watches over one group. Detects ranks that died or left, calls that differ between ranks, and
// operations that stall. Floods the first cause to all ranks, and fails this rank's operations with
// the cause. Adds up the ranks' codec figures. Owned by the group. The progress thread polls it;
// submitting threads call record().
class Health : public Monitor, private ControlPlane::Owner {
 public:
  Health(Executor& executor, std::shared_ptr<RunQueue> queue, int rank, int size,
         const std::string& address);

  // See ControlPlane::listen_at().
  void listen_at(const std::string& address) { control_.listen_at(address); }
  const std::string& contact() const { return control_.contact(); }
  // Connects to the neighbours, and begins to watch.
  void begin(const std::vector<ControlPlane::Neighbour>& ranks, const std::string& group_key,
             const Deadline& deadline);
  // Polls until all neighbours have proven the group's key, or the group has failed. A neighbour
  // that stops before its proof cannot be told from a dead one.
  void await_proofs(const Deadline& deadline);
  // The next three come before begin().
  void share_host();  // all ranks of the group are on one host
  // Watches the networks of the rails, too.
  void watch_rails(std::unique_ptr<RailWatch> rails) { rails_ = std::move(rails); }
  void use_stripes(std::vector<OwnStripe> stripes) { stripes_ = std::move(stripes); }
  // record() and report_refusal() do not wait under this lock. The executor's lock comes after it.
  using Lock = std::unique_lock<std::recursive_mutex>;
  Lock try_lock() { return Lock(mutex_, std::try_to_lock); }
  // Remembers a call before it is submitted, and compares it with the calls of stalled peers.
  // `left_out`: the number of lost rails without which the call was planned. Returns false if the
  // agreed number differs; see lost_rails().
  bool record(const CallDescriptor& call, size_t left_out);
  bool leaves_out_lost_rails(size_t left_out, uint64_t sequence);  // what record() checks
  // The rails that the plan of this collective leaves out: the same on every rank. Waits while the
  // ranks agree on the first call without a rail. Returns early if the group fails. Without an
  // agreement by the deadline, the group fails.
  std::vector<RailEnds> lost_rails(uint64_t sequence, const Deadline& deadline);
  // Remembers why this rank's next call was refused, and tells ranks that wait in this call.
  void report_refusal(const Status& why);
  // Adds up the figures of all ranks for a round of a CodecTrial, and gives every rank the total:
  // over a tree, whose edges are control connections. Each rank calls this once for each round.
  void report(const std::string& trial, int64_t round, const CodecFigures& own);
  // The group as people know it, for inquiries. Comes before begin().
  void introduce(std::string group, std::vector<RankPlace> places);
  // Asks all ranks that can be reached for their state. Calls `done` once, on the progress thread
  // or within this call: when all have answered, or after a second with what came by then.
  // Thread-safe; without any lock.
  using Inquired = std::function<void(const GroupState&)>;
  void inquire(const std::string& why, const Inquiry& inquiry, Inquired done);
  // Looks for stragglers and slow paths every so often, on rank 0. Comes before begin().
  void watch_pace(Predicted predicted, std::chrono::nanoseconds period);
  GroupTotals totals();
  bool member();  // this rank has not left the group
  // Lets an inquiry about the group's failure end before this rank leaves; bounded. Without a
  // failure returns at once.
  void await_inquiry_after_failure();
  // Tells the other ranks that this rank leaves in good order; at most once.
  void say_goodbye(const Deadline& deadline);
  // Closes all connections; ends the watch.
  void end();

  void poll() override;
  void failed(const Status& status) override;
  void tell_failure() override;

 private:
  struct PeerCall {
    int peer;
    CallDescriptor call;
    std::string caller;  // its source line, if known
    Clock::time_point known = Clock::now();
  };
  // A rank has left.
  struct Departure {
    uint64_t calls;  // the number of collectives it took part in
    uint64_t rails;  // of how many lost rails it knew the first call
    Clock::time_point at;
    std::string refusal;  // why its next call was refused; empty without a refusal
  };
  // The reason why a rank is missing in a collective.
  struct Refusal {
    Status why;
    bool reported = false;
  };

  void on_lost(int peer) override;
  void on_news(int origin, int from, const std::string& bytes) override;
  void on_malformed(int peer, const std::string& why) override;
  void watch(int descriptor) override;
  void unwatch(int descriptor) override { executor_.unwatch(descriptor); }
  void flood_failure();
  void check_lost();
  void fail(const Status& status);
  void deliver();
  void await_delivery();
  // stalls.cc
  void check_stalls();
  void note_stall(uint64_t sequence, int rank);
  void flood_stall(Run& run);
  void flood_refusal();
  std::shared_ptr<Run> disputed_run();
  void check_disputes();
  bool compare(const PeerCall& theirs);
  // The error of an operation for which this rank awaits a rank that has left.
  Status missing(int peer, const Departure& departure, const std::string& where) const;
  // rails.cc
  void check_rails();
  bool rails_left(int peer, const RailEnds& rail) const;
  void lose_rail(const RailEnds& rail, const std::string& why, int peer);
  void on_rail(int origin, const RailEnds& rail);
  bool take_first_call(const News& total);
  bool knows_rails_of(uint64_t sequence) const;
  Status no_agreement() const;
  // silence.cc
  void check_silence();
  void tell_silence(int peer, const std::string& words, bool ended);
  bool note_silence(int peer, bool ended);  // false if it was known
  // inquiry.cc
  struct Asked;
  // Gives the inquiry its asker and its number.
  std::shared_ptr<Asked> ask(const std::string& why, Inquiry inquiry, Inquired done);
  RankState own_state(const Inquiry& inquiry);
  void on_inquiry(int from, const Inquiry& inquiry);
  void on_answer(const News& news);
  void flood(std::shared_ptr<Asked> asked);
  std::chrono::milliseconds turn_to_inquire() const;
  void inquire_after_failure();
  void finish_inquiries(bool all);
  // culprits.cc
  void inquire_before_timeout(const Run& run);
  void blame(uint64_t sequence, const GroupState& state);
  void note_inquiry(uint64_t sequence);
  void note_culprit(uint64_t sequence, const Status& why);
  // pace_watch.cc
  void look_at_pace();
  // figures.cc
  void on_figures(int origin, const News& news);
  void add_figures(const News& news);
  void pass_down(const News& total);
  void decide_trials();

  Executor& executor_;
  std::shared_ptr<RunQueue> queue_;
  const int rank_, size_;
  std::chrono::milliseconds grace_;     // after a connection has ended without a goodbye
  std::recursive_mutex mutex_;          // guards the following members
  std::vector<int> early_descriptors_;  // made before begin()
  bool watching_ = false, flooded_failure_ = false, said_goodbye_ = false;
  Status cause_;            // the first failure noticed here
  bool delivered_ = false;  // to the executor
  ControlPlane control_;
  std::unique_ptr<RailWatch> rails_;
  std::vector<OwnStripe> stripes_;
  std::vector<RailEnds> lost_rails_;  // that this rank knows of
  std::vector<RailEnds> left_out_;    // of plans, in the order of rank 0
  // By lost rail: the first collective whose plan leaves it out. Shorter than left_out_ until all
  // ranks have reported.
  std::vector<uint64_t> first_calls_;
  std::condition_variable_any agreed_changed_;
  std::map<int, Clock::time_point> lost_;  // connections that ended without a goodbye
  std::map<int, Departure> departures_;
  const std::chrono::milliseconds peer_timeout_ = peer_timeout();  // of silence
  Clock::time_point last_beat_{}, last_look_{}, regular_since_{};
  std::map<int, Clock::time_point> silent_;  // neighbours that this rank has found silent; since
  // By silent rank, and whether the silence ended: the last line in the log.
  std::map<std::pair<int, bool>, Clock::time_point> last_alarm_;
  static constexpr size_t kRemembered = 64;
  std::array<CallDescriptor, kRemembered> calls_{};  // by sequence
  uint64_t next_call_ = 0;                           // sequence after the newest recorded
  std::multimap<uint64_t, PeerCall> early_calls_;    // of peers, ahead of this rank; by sequence
  std::vector<PeerCall> different_;                  // not yet told, see compare()
  bool told_dispute_ = false;
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
  std::shared_ptr<PaceWatch> pace_;                           // on rank 0
  uint64_t stalls_ = 0;
  std::string group_;
  std::vector<RankPlace> places_;
  std::string clock_;
  uint64_t inquiries_ = 0;                         // of this rank so far
  std::vector<std::shared_ptr<Asked>> asked_;      // that other ranks have yet to answer
  std::deque<std::pair<Inquiry, int>> inquirers_;  // the latest of other ranks, and their senders
  std::optional<Clock::time_point> failed_at_;     // when this rank learnt of the failure
  bool inquired_after_failure_ = false;            // this rank or another one
  // Of the newest inquiry before a timeout, of any rank: the call's sequence + 1, and when.
  uint64_t asked_about_ = 0;
  Clock::time_point asked_at_{};
};

}  // namespace hetcomm
