// Who waits for whom, and the likely culprits.

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "base/config.h"
#include "base/joined.h"
#include "health/group_state.h"

namespace hetcomm {
namespace {

constexpr size_t kMostPairs = 4, kMostRanks = 16;
// A shorter wait has no culprit.
constexpr int64_t kLeastWait = 1'000'000'000;  // ns

std::string ago(int64_t ns) {
  return format_seconds(std::chrono::nanoseconds(std::max<int64_t>(ns, 0)));
}

std::string ranks_text(const std::set<int>& ranks) {
  const auto shown = static_cast<std::ptrdiff_t>(std::min(ranks.size(), kMostRanks));
  const size_t more = ranks.size() - static_cast<size_t>(shown);
  return (ranks.size() == 1 ? "rank " : "ranks ") +
         joined(std::vector<int>(ranks.begin(), std::next(ranks.begin(), shown))) +
         (more > 0 ? " and " + std::to_string(more) + " more" : "");
}

bool stalled(const RankState& state, const RecordedOperation& one) {
  return one.failed() || (one.ended < 0 && state.now - one.submitted >= kLeastWait);
}

class Finder {
 public:
  explicit Finder(const GroupState& state) : state_(state) {
    for (int rank = 0; rank < state.size(); ++rank) {
      for (const RecordedOperation& one : operations(rank)) {
        if (!one.message() && stalled(rank, one)) first_ = std::min(first_, one.call.sequence);
      }
    }
    for (int rank = 0; rank < state.size(); ++rank) find_awaited(rank);
  }

  std::vector<Culprit> found() {
    blame_silent();
    const bool any_late = blame_late(first_), any_differs = blame_differing();
    if (!any_late && !any_differs && !blame_late_behind()) {
      if (found_.empty() && !blame_streams()) blame_stuck_islands();
      blame_awaited();
    }
    if (found_.empty()) blame_mutual();
    return found_;
  }

 private:
  const std::vector<RecordedOperation>& operations(int rank) const {
    static const std::vector<RecordedOperation> none;
    return state_.answers[rank] ? state_.answers[rank]->state.operations : none;
  }

  bool stalled(int rank, const RecordedOperation& one) const {
    return hetcomm::stalled(state_.answers[rank]->state, one);
  }

  // The rank's call of a collective.
  const RecordedOperation* call_of(int rank, uint64_t sequence) const {
    for (const RecordedOperation& one : operations(rank)) {
      if (!one.message() && one.call.sequence == sequence) return &one;
    }
    return nullptr;
  }

  // The rank's call of the first stalled collective.
  const RecordedOperation* of_first(int rank) const { return call_of(rank, first_); }

  bool missing(int rank, uint64_t sequence) const {
    return state_.answers[rank] && state_.answers[rank]->state.calls <= sequence;
  }

  static bool in_step_of(const RecordedOperation* call, Performer performer) {
    if (call == nullptr || call->succeeded()) return false;
    return std::any_of(call->steps.begin(), call->steps.end(), [&](const auto& step) {
      return step.end < 0 && step.kind->performer == performer;
    });
  }

  bool in_island_step(int rank) const { return in_step_of(of_first(rank), Performer::island); }

  // In the first collective the rank waits for its own device alone.
  bool in_own_step(int rank) const {
    return !waits_.contains(rank) && in_step_of(of_first(rank), Performer::rank);
  }

  void find_awaited(int rank) {
    for (const RecordedOperation& one : operations(rank)) {
      if (one.message() ? !stalled(rank, one) : one.succeeded() || one.call.sequence != first_) {
        continue;
      }
      for (const RecordedStep& step : one.steps) {
        if (step.end >= 0) continue;
        if (step.peer >= 0) waits_[rank].insert(step.peer);
        if (step.kind->performer != Performer::island) continue;
        for (int other = 0; other < state_.size(); ++other) {
          const bool member = state_.places[other].island == state_.places[rank].island;
          if (member && other != rank && !in_island_step(other)) waits_[rank].insert(other);
        }
      }
    }
  }

  std::set<int> waiting_for(int rank) const {
    std::set<int> found;
    for (const auto& [waiter, awaited] : waits_) {
      if (awaited.contains(rank)) found.insert(waiter);
    }
    return found;
  }

  void blame(int rank, const std::string& what) {
    found_.push_back({rank, state_.name(rank) + what});
  }

  void blame_silent() {
    for (int rank = 0; rank < state_.size(); ++rank) {
      if (state_.silent[rank].empty()) continue;
      const std::set<int> waiters = waiting_for(rank);
      if (waiters.empty() && state_.silent[rank] == kLeft) continue;  // in good order
      blame(rank, " " + state_.silent[rank] +
                      (waiters.empty() ? ""
                                       : "; " + ranks_text(waiters) + " " +
                                             (waiters.size() == 1 ? "waits" : "wait") + " for it"));
    }
  }

  bool blame_late(uint64_t sequence) {
    std::set<int> callers;
    const RecordedOperation* call = nullptr;
    int64_t longest = 0;
    for (int rank = 0; rank < state_.size(); ++rank) {
      const RecordedOperation* const own = call_of(rank, sequence);
      if (own == nullptr) continue;
      call = own;
      if (own->succeeded()) continue;
      callers.insert(rank);
      longest = std::max(longest, state_.answers[rank]->state.now - own->submitted);
    }
    bool any = false;
    for (int rank = 0; !callers.empty() && rank < state_.size(); ++rank) {
      // A wait in the first collective excuses a rank in later ones.
      if (!missing(rank, sequence) || (sequence != first_ && waits_.contains(rank))) continue;
      any = true;
      const RankState& own = state_.answers[rank]->state;
      std::string last = "; it has made no call in this group";
      for (const RecordedOperation& one : own.operations) {
        if (one.message() || one.ended < 0) continue;
        last =
            "; its last, " + describe(one.call, 0) + ", ended " + ago(own.now - one.ended) + " ago";
      }
      blame(rank, " has not called " + describe(call->call, 0) + ", in which " +
                      ranks_text(callers) + (callers.size() == 1 ? " has" : " have") +
                      " waited for " + ago(longest) + last);
    }
    return any;
  }

  // Streams of a device may share a hardware queue. The kernel of a later collective may then block
  // this rank's own steps of the first one. The late rank of the later collective is the culprit.
  bool blame_late_behind() {
    std::set<uint64_t> later;
    for (int rank = 0; rank < state_.size(); ++rank) {
      if (!in_own_step(rank)) continue;
      for (const RecordedOperation& one : operations(rank)) {
        const bool behind = !one.message() && one.call.sequence > first_ && one.ended < 0;
        if (behind && stalled(rank, one) && in_step_of(&one, Performer::island)) {
          later.insert(one.call.sequence);
        }
      }
    }
    return std::any_of(later.begin(), later.end(), [&](uint64_t each) { return blame_late(each); });
  }

  bool blame_differing() {
    std::vector<std::pair<CallDescriptor, std::set<int>>> calls;
    for (int rank = 0; rank < state_.size(); ++rank) {
      const RecordedOperation* const own = of_first(rank);
      if (own == nullptr) continue;
      const auto same = std::find_if(calls.begin(), calls.end(), [&](const auto& one) {
        return one.first.same_call(own->call);
      });
      if (same == calls.end()) {
        calls.emplace_back(own->call, std::set<int>{rank});
      } else {
        same->second.insert(rank);
      }
    }
    if (calls.size() < 2) return false;
    std::string text;
    for (const auto& [call, ranks] : calls) {
      text += (text.empty() ? "" : ", ") + ranks_text(ranks) + " called " + describe_call(call);
    }
    found_.push_back(
        {-1, "ranks disagree about collective #" + std::to_string(first_) + ": " + text});
    return true;
  }

  // Work that a caller has put into its stream before the call holds up the steps of its rank. A
  // program may run ahead of all its devices, so it is no culprit if all ranks wait for such work.
  bool blame_streams() {
    std::set<int> behind, others;
    for (int rank = 0; rank < state_.size(); ++rank) {
      const RecordedOperation* const own = of_first(rank);
      if (own == nullptr || own->succeeded()) continue;
      (own->behind_stream ? behind : others).insert(rank);
    }
    for (int rank : behind) {
      if (others.empty()) break;
      stuck_.insert(rank);
      blame(rank, " waits in " + describe(of_first(rank)->call, 0) +
                      " for earlier work in the caller's stream");
    }
    return !behind.empty();
  }

  // The rank's island step of the first collective, and its ns so far, if it has lasted a second;
  // else null.
  std::pair<const RecordedStep*, int64_t> long_island_step(int rank) const {
    const RecordedOperation* const own = of_first(rank);
    if (own == nullptr || own->succeeded()) return {};
    const int64_t until = own->failed() ? own->ended : state_.answers[rank]->state.now;
    for (const RecordedStep& step : own->steps) {
      if (step.end >= 0 || step.kind->performer != Performer::island) continue;
      const int64_t time = until - std::max(step.begin, own->submitted);
      if (time >= kLeastWait) return {&step, time};
    }
    return {};
  }

  // Islands whose members have all been in a step of the island for a second. No member knows the
  // one that is stuck.
  void blame_stuck_islands() {
    std::map<int, std::set<int>> islands;
    for (int rank = 0; rank < state_.size(); ++rank) {
      islands[state_.places[rank].island].insert(rank);
    }
    for (const auto& [island, members] : islands) {
      std::set<std::string> kinds;
      int64_t longest = 0;
      const bool all = std::all_of(members.begin(), members.end(), [&](int rank) {
        const auto [step, time] = long_island_step(rank);
        if (step != nullptr) kinds.insert(step->kind->name);
        longest = std::max(longest, time);
        return step != nullptr;
      });
      if (!all) continue;
      stuck_.insert(members.begin(), members.end());
      const RecordedOperation& own = *of_first(*members.begin());
      const std::string steps = kinds.size() == 1 ? "step " : "steps ";
      found_.push_back({-1, "all of " + ranks_text(members) + (own.failed() ? " were" : " are") +
                                " in " + steps + joined(std::vector(kinds.begin(), kinds.end())) +
                                " of " + describe(own.call, 0) + ", for " + ago(longest) +
                                ": the device of one, their library, or the network between them "
                                "is slow or stands still"});
    }
  }

  void blame_awaited() {
    std::set<int> awaited;
    for (const auto& [waiter, peers] : waits_) awaited.insert(peers.begin(), peers.end());
    for (int rank : awaited) {
      if (!state_.answers[rank] || waits_.contains(rank) || stuck_.contains(rank)) continue;
      const RecordedOperation* const own = of_first(rank);
      const std::set<int> waiters = waiting_for(rank);
      const std::string& note = state_.answers[rank]->state.note;
      std::string what = note.empty() ? "is in no operation" : note;
      if (own != nullptr)
        what = (own->succeeded() ? "has ended " : "is still in ") + describe(own->call, 0);
      blame(rank, ", for which " + ranks_text(waiters) +
                      (waiters.size() == 1 ? " waits, " : " wait, ") + what +
                      " and waits for no rank");
    }
  }

  void blame_mutual() {
    size_t pairs = 0;
    for (const auto& [rank, peers] : waits_) {
      for (int peer : peers) {
        if (peer < rank || !waiting_for(rank).contains(peer) || ++pairs > kMostPairs) continue;
        found_.push_back({-1, state_.name(rank) + " and " + state_.name(peer) +
                                  " wait for messages of each other: the path between them is slow "
                                  "or broken, or each made another call"});
      }
    }
  }

  const GroupState& state_;
  uint64_t first_ = UINT64_MAX;  // the first stalled collective of any rank
  std::map<int, std::set<int>> waits_;
  std::set<int> stuck_;  // ranks whose own device or island is blamed
  std::vector<Culprit> found_;
};

}  // namespace

bool any_stalled(const GroupState& state) {
  return std::any_of(state.answers.begin(), state.answers.end(), [](const auto& answer) {
    return answer && std::any_of(answer->state.operations.begin(), answer->state.operations.end(),
                                 [&](const auto& one) { return stalled(answer->state, one); });
  });
}

std::vector<Culprit> culprits(const GroupState& state) { return Finder(state).found(); }

}  // namespace hetcomm
