#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "health/call_watch.h"
#include "health/inquiries.h"
#include "health/losses.h"
#include "health/lost_rails.h"
#include "health/pace.h"
#include "health/silence_watch.h"
#include "health/tree_reduce.h"
#include "health/watched_group.h"

namespace hetcomm {

// What one rank counted in a group.
struct GroupTotals {
  std::string group;
  int rank = 0;
  std::array<OperationTotals, kCollectives> collectives{};  // times in ns
  uint64_t stalls = 0;                                      // noted stalls of collectives
  bool failed = false;
  // On rank 0, by rank: the compared calls to which it came last; `compared` in all.
  std::vector<uint64_t> late;
  uint64_t compared = 0;
};

class PaceWatch;

// Watches over one group. Detects ranks that died or left, calls that differ between ranks, and
// operations that stall. Floods the first cause to all ranks, and fails this rank's operations with
// the cause. Adds up the ranks' codec figures. Owned by the group. The progress thread polls it;
// submitting threads call record(). Passes each kind of news to its part.
class Health : public Monitor, private ControlPlane::Owner {
 public:
  Health(Executor& executor, std::shared_ptr<RunQueue> queue, int rank, int size,
         const std::string& address);

  // See ControlPlane::listen_at().
  void listen_at(const std::string& address) { group_.control.listen_at(address); }
  const std::string& contact() const { return group_.control.contact(); }
  // Connects to the neighbours, and begins to watch. Throws Error, of which the other ranks learn.
  void begin(Ring ring, const std::vector<ControlPlane::Neighbour>& ranks,
             const std::string& group_key, const Deadline& deadline);
  // A second connection to each neighbour; see ControlPlane::connect_rails().
  void connect_rails(const std::vector<std::vector<std::string>>& addresses);
  // Returns once all neighbours have proven the group's key. Throws Error if the group fails
  // before. A neighbour that stops before its proof cannot be told from a dead one.
  void await_proofs(const Deadline& deadline);
  Status cause();                       // the first failure that this rank knows; ok without one
  void give_up(const Status& failure);  // tells the failure, which ends set-up
  // Set-up has succeeded: from now on the watch over rails, calls and pace counts, too.
  void complete();
  // All ranks of the group are on one host. Comes before begin().
  void share_host() { losses_.share_host(); }
  // Watches the networks of the rails, too. Both come before complete().
  void watch_rails(std::unique_ptr<RailWatch> rails);
  void use_stripes(std::vector<OwnStripe> stripes);
  // record() and report_refusal() do not wait under this lock. The executor's lock comes after it.
  using Lock = std::unique_lock<std::recursive_mutex>;
  Lock try_lock() { return Lock(group_.mutex, std::try_to_lock); }
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
  // Adds up the figures of all ranks for a round of a CodecTrial, and gives every rank the sum:
  // over a tree, whose edges are control connections. Each rank calls this once for each round.
  void report(const std::string& trial, int64_t round, const CodecFigures& own);
  // The group as people know it, for inquiries. Comes before begin().
  void introduce(std::string group, std::vector<RankPlace> places);
  // Asks all ranks that can be reached for their state. Calls `done` once, on the progress thread
  // or within this call: when all have answered, or after a second with what came by then.
  // Thread-safe; without any lock.
  void inquire(const std::string& why, const Inquiry& inquiry, Inquiries::Done done);
  // Looks for stragglers and slow paths every so often, on rank 0. Comes before complete().
  void watch_pace(Predicted predicted, std::chrono::nanoseconds period);
  GroupTotals totals();
  bool member();  // this rank has not left the group
  // The ranks of these that are lost, also since the group's failure, as one failure with all lost
  // ranks; ok if there are none.
  Status lost_among(const std::vector<int>& ranks);
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
  void on_lost(int peer) override;
  void on_news(int origin, int from, bool flooded, const std::string& bytes) override;
  void on_malformed(int peer, const std::string& why) override;
  void watch(int descriptor) override;
  void unwatch(int descriptor) override {
    std::erase(early_descriptors_, descriptor);
    group_.executor.unwatch(descriptor);
  }
  void on_failure(const FailureNews& news);
  void on_goodbye(int origin, const GoodbyeNews& news);
  void flood_failure();
  void flood_once(const Status& failure);
  void deliver();
  void await_delivery();
  void decide_trials();
  void look_at_pace();

  // Made before begin(), the first ones by the constructor of group_.
  std::vector<int> early_descriptors_;
  WatchedGroup group_;  // its mutex guards the parts, and the following flags
  bool complete_ = false;
  bool flooded_failure_ = false;
  bool delivered_ = false;  // the cause, to the executor
  SilenceWatch silence_;
  CallWatch calls_;
  LostRails lost_rails_;
  Inquiries inquiries_;
  Losses losses_;
  TreeReduce<FiguresNews> figures_;
  std::shared_ptr<PaceWatch> pace_;  // on rank 0
  GroupTotals totals_;               // the last ones
};

}  // namespace hetcomm
