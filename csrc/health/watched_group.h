#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "health/control.h"
#include "health/group_state.h"
#include "health/news.h"

namespace hetcomm {

// For Executor::lock_within(): a library may stand still while it has the executor's lock.
inline constexpr std::chrono::milliseconds kLockBound(200);

// Why a rank in WatchedGroup::lost does not answer.
inline constexpr const char* kGone = "is gone: its process ended or its host became unreachable";

// A rank has left the group.
struct Departure {
  GoodbyeNews news;
  Clock::time_point at = Clock::now();
};

// What the parts of Health share of one group. The mutex guards all members that are not const, and
// all parts; functions of parts are called under the mutex unless they say otherwise. The
// executor's lock comes after the mutex.
struct WatchedGroup {
  WatchedGroup(Executor& executor, std::shared_ptr<RunQueue> queue, int rank, int size,
               const std::string& address, ControlPlane::Owner& owner);

  // This rank watches, and has not begun to leave.
  bool active() const { return watching && !said_goodbye; }
  // Remembers the first cause.
  void fail(const Status& status);
  Status queue_failure() const;  // the first failure that the executor knows
  void flood(const News& news) { control.flood(pack(news)); }
  void tell(int peer, const News& news) { control.tell(peer, pack(news)); }
  bool left(int peer) const { return departures.contains(peer); }
  // The error of an operation for which this rank awaits a rank that has left.
  Status left_too_early(int peer, const std::string& where) const;

  Executor& executor;
  const std::shared_ptr<RunQueue> queue;
  const int rank, size;
  std::recursive_mutex mutex;
  std::string name;               // for people
  std::vector<RankPlace> places;  // by rank
  uint64_t next_call = 0;         // sequence after the newest recorded call
  bool watching = false;          // from the first connections to their end
  bool said_goodbye = false;
  Status cause;                           // the first failure noticed here
  std::map<int, Clock::time_point> lost;  // ranks whose connections ended without a goodbye
  std::map<int, Departure> departures;
  std::condition_variable_any changed;  // the cause, the departures, or the calls of lost rails
  ControlPlane control;                 // last: its constructor calls Owner::watch()
};

}  // namespace hetcomm
