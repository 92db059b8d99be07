#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "health/watched_group.h"

namespace hetcomm {

// Compares the calls of ranks, and finds a rank that is missing in a collective: by its refusal, or
// because it has left.
class CallWatch {
 public:
  explicit CallWatch(WatchedGroup& group) : group_(group) {}

  // Remembers a call of this rank, and compares it with the calls of stalled peers.
  void record(const CallDescriptor& call);
  // Remembers why this rank's next call was refused.
  void report_refusal(const Status& why);
  std::string refusal() const;                 // of this rank's next call; empty without one
  uint64_t stalls() const { return stalls_; }  // of this rank so far

  void on_news(int origin, const StallNews& news);
  void on_news(const RefusalNews& news);

  // This rank's run in dispute, or null.
  std::shared_ptr<Run> disputed_run() const;
  void check_disputes();
  void flood_refusal();
  // Returns the stalled collective that is nearest to its timeout, or null.
  std::shared_ptr<Run> check_stalls();

 private:
  static constexpr size_t kRemembered = 64;

  struct PeerCall {
    int peer;
    StallNews news;
    Clock::time_point known = Clock::now();
  };
  // The reason why a rank is missing in a collective.
  struct Refusal {
    Status why;
    bool reported = false;
  };

  bool compare(const PeerCall& theirs);
  void note_waiting(uint64_t sequence, int rank);
  bool awaits_departed(const Run& run);
  void warn_of_refusal(const Run& run);
  void flood_stall(Run& run);

  WatchedGroup& group_;
  std::array<CallDescriptor, kRemembered> calls_{};  // by sequence
  std::multimap<uint64_t, PeerCall> early_;          // of peers, ahead of this rank; by sequence
  std::vector<PeerCall> uncompared_;                 // see compare()
  bool told_dispute_ = false;
  uint64_t stalls_ = 0;
  uint64_t stalls_seen_ = 0;                      // sequence + 1 of the newest stall of this rank
  Clock::time_point last_flood_{};                // of a stall
  std::map<uint64_t, std::vector<int>> waiting_;  // by sequence: ranks that wait in the call
  std::optional<Refusal> refusal_;                // of this rank's next call
  std::map<uint64_t, Refusal> peer_refusals_;     // of other ranks, by sequence
};

}  // namespace hetcomm
