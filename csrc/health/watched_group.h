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

// Why a rank in WatchedGroup::lost does not answer.
inline constexpr const char* kGone = "is gone: its process ended or its host became unreachable";

// A rank is lost, for this rank or for another one.
struct Loss {
  Clock::time_point since;               // known here
  std::chrono::milliseconds silence{0};  // of its unreachable host; 0: its connection ended
};

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
  // The executor's lock. Empty if a library stands still while it has the lock: waits kLockBound
  // once in each poll.
  std::unique_lock<std::mutex> hold();
  void begin_poll() { stuck_ = false; }
  Status queue_failure();  // the first failure that the executor knows
  void flood(const News& news) { control.flood(pack(news)); }
  void tell(int peer, const News& news) { control.tell(peer, pack(news)); }
  bool left(int peer) const { return departures.contains(peer); }
  // Returns false if the rank has left, or if its loss is known.
  bool note_loss(const LossNews& news);
  // Tells all ranks of a loss that this rank has noticed, unless it is known.
  void tell_loss(const LossNews& news);
  Status losses() const;  // all of them as one failure
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
  Status cause;              // the first failure noticed here
  std::map<int, Loss> lost;  // see Losses
  std::map<int, Departure> departures;
  std::condition_variable_any changed;  // the cause, the departures, or the calls of lost rails
  ControlPlane control;                 // last: its constructor calls Owner::watch()

 private:
  bool stuck_ = false;  // the executor's lock, since the last poll
};

}  // namespace hetcomm
