#include "health/pace.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>

#include "base/config.h"
#include "health/path_rates.h"

namespace hetcomm {
namespace {

constexpr int kFewestCompared = 8;
// A straggler comes last to this share of the calls, with this mean delay. Its delays also make up
// half of the next rank's time in these calls.
constexpr int kFewestLastPercent = 60;
constexpr int64_t kLeastDelay = 200'000;  // ns
// A collective is slow if the fastest of so many calls takes so many times the predicted time, and
// so much more. A rank can wait for a processor.
constexpr int kFewestCalls = 20;
constexpr int64_t kLeastSlowdown = 4;
constexpr int64_t kLeastExcess = 1'000'000;  // ns
// Two clocks of different hosts drift apart by at most 1 ns in so many.
constexpr int64_t kDrift = 10'000;

std::string seconds(int64_t ns) { return format_seconds(std::chrono::nanoseconds(ns)); }

// A call that every rank told, by rank. Begins are times of the asker's clock.
using CommonCall = std::vector<CallTime>;

std::vector<CommonCall> common_calls(const GroupState& state) {
  std::map<uint64_t, CommonCall> calls;
  for (int rank = 0; rank < state.size(); ++rank) {
    if (!state.answers[rank]) return {};
    for (CallTime one : state.answers[rank]->state.call_times) {
      one.begin += state.answers[rank]->offset;
      CommonCall& call = calls[one.sequence];
      if (call.size() == static_cast<size_t>(rank)) call.push_back(one);  // all before have it
    }
  }
  std::vector<CommonCall> common;
  for (auto& [sequence, call] : calls) {
    if (call.size() == state.answers.size()) common.push_back(std::move(call));
  }
  return common;
}

// The ranks that are inside the call for the shortest time and for the next to shortest time.
std::pair<int, int> shortest(const CommonCall& call) {
  int first = 0, next = -1;
  for (int rank = 1; rank < static_cast<int>(call.size()); ++rank) {
    if (call[rank].time < call[first].time) {
      next = first;
      first = rank;
    } else if (next < 0 || call[rank].time < call[next].time) {
      next = rank;
    }
  }
  return {first, next};
}

// Times of these ranks at about `at` compare within so many ns.
int64_t uncertainty(const GroupState& state, int a, int b, int64_t at) {
  const GroupState::Answer &one = *state.answers[a], &other = *state.answers[b];
  if (one.state.clock == other.state.clock && one.offset == other.offset) return 0;
  const int64_t age = std::abs(state.answers[state.asker]->state.now - at);
  return one.error + other.error + age / kDrift;
}

// A lower bound of the time from the last begin to the last end. Each begin counts as late as the
// clocks permit. The time of the fastest rank is a lower bound, too.
int64_t least_duration(const GroupState& state, const CommonCall& call) {
  int last = 0;
  int64_t shortest = INT64_MAX;
  for (int rank = 0; rank < state.size(); ++rank) {
    if (call[rank].begin + call[rank].time > call[last].begin + call[last].time) last = rank;
    shortest = std::min(shortest, call[rank].time);
  }
  int64_t time = INT64_MAX;
  for (int rank = 0; rank < state.size(); ++rank) {
    const int64_t begin = call[rank].begin + uncertainty(state, last, rank, call[rank].begin);
    time = std::min(time, call[last].begin + call[last].time - begin);
  }
  return std::max(time, shortest);
}

}  // namespace

std::string Straggler::text(const GroupState& state) const {
  return state.name(rank) + " of group \"" + state.group + "\" comes last to " +
         std::to_string(times_last) + " of " + std::to_string(compared) + " collectives, " +
         seconds(delay) +
         " after the next rank on average; the other ranks wait for it: look at its "
         "data, its processor or its device";
}

std::optional<Straggler> straggler(const GroupState& state) {
  if (state.size() < 2) return std::nullopt;
  Straggler found;
  found.last_by_rank.resize(state.size());
  std::vector<int64_t> delays(state.size()), waited(state.size());
  for (const CommonCall& call : common_calls(state)) {
    ++found.compared;
    found.newest = call.front().sequence;
    const auto [last, next] = shortest(call);
    ++found.last_by_rank[last];
    // A straggler begins late, and then waits less. The sender over a slow path waits less, too,
    // but begins with the other ranks, as far as the clocks can tell.
    const int64_t shorter_wait = call[next].time - call[last].time;
    const int64_t later_begin =
        call[last].begin - call[next].begin + uncertainty(state, last, next, call[last].begin);
    delays[last] += std::max<int64_t>(std::min(later_begin, shorter_wait), 0);
    waited[last] += call[next].time;
  }
  if (found.compared < kFewestCompared) return std::nullopt;
  const auto most = std::max_element(found.last_by_rank.begin(), found.last_by_rank.end());
  found.rank = static_cast<int>(most - found.last_by_rank.begin());
  found.times_last = *most;
  found.delay = delays[found.rank] / found.times_last;
  found.persistent = found.times_last * 100 >= found.compared * kFewestLastPercent &&
                     found.delay >= kLeastDelay && delays[found.rank] * 2 >= waited[found.rank];
  return found;
}

std::string slow_collective(const GroupState& state, const Predicted& predicted) {
  struct Fastest {
    int64_t count = 0, time = INT64_MAX;
    Dtype dtype = Dtype::float32;
    int calls = 0;
  };
  std::map<std::pair<Collective, int>, Fastest> fastest;  // by collective and size class
  for (const CommonCall& call : common_calls(state)) {
    const CallTime& own = call[state.asker];
    const uint64_t bytes = static_cast<uint64_t>(own.count) * size_of(own.dtype);
    if (bytes < kLongCall) continue;
    Fastest& one = fastest[{own.collective, std::bit_width(bytes)}];
    ++one.calls;
    const int64_t time = least_duration(state, call);
    if (time >= one.time) continue;
    one.count = own.count;
    one.dtype = own.dtype;
    one.time = time;
  }
  std::string text;
  int64_t worst = kLeastSlowdown;
  for (const auto& [key, one] : fastest) {
    if (one.calls < kFewestCalls) continue;
    const int64_t expected = predicted(key.first, one.dtype, one.count);
    if (expected <= 0 || one.time / expected < worst || one.time - expected < kLeastExcess)
      continue;
    worst = one.time / expected;
    text = "group \"" + state.group + "\": " + name(key.first) + " of " +
           format_bytes(one.count * static_cast<int64_t>(size_of(one.dtype))) + " takes " +
           seconds(one.time) + " at best of " + std::to_string(one.calls) + " calls, expected " +
           seconds(expected);
  }
  if (text.empty()) return text;
  const std::string path = slowest_path(state);
  if (!path.empty()) text += "; the slowest path is " + path;
  return text +
         "; measure with hetcomm bench, look at the network with hetcomm doctor, or price by "
         "hetcomm tune";
}

}  // namespace hetcomm
