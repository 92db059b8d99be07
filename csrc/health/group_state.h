#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "health/rank_state.h"

namespace hetcomm {

// Why a rank that has said goodbye does not answer.
inline constexpr const char* kLeft = "has left the group";

// Where a rank of a group runs.
struct RankPlace {
  std::string host;  // its name, for people
  int island = 0;
};

// What all ranks of a group told at one inquiry. Plain data.
struct GroupState {
  struct Answer {
    RankState state;
    // Added to a time of this rank, gives the time on the asker's clock, within `error` ns. Both
    // are 0 for ranks with the asker's clock.
    int64_t offset = 0, error = 0;
  };

  std::string group;
  int asker = 0;
  std::string why;                             // of the inquiry
  std::vector<RankPlace> places;               // by rank
  std::vector<std::optional<Answer>> answers;  // by rank
  std::vector<std::string> silent;             // by rank: why it has no answer; empty with one

  int size() const { return static_cast<int>(places.size()); }
  std::string name(int rank) const;  // "rank 2 on red0"
};

// Says who waits for whom and since when: the likely culprits first, then a line for each rank.
std::string diagnosis(const GroupState& state);

// A likely culprit: a rank, or -1 for several together.
struct Culprit {
  int rank;
  std::string text;  // "rank 2 on red0 has not called ..."
};

// Empty if no operation has stalled or failed, or if no rank or island is more suspect than others.
std::vector<Culprit> culprits(const GroupState& state);
bool any_stalled(const GroupState& state);  // an operation has failed, or lasted a second

// JSON of Chrome's trace viewer: a process for each rank of each group, a thread for each leg.
std::string chrome_trace(const std::vector<GroupState>& groups);

}  // namespace hetcomm
