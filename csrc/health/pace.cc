#include "health/pace.h"

#include <algorithm>
#include <map>

#include "base/config.h"

namespace hetcomm {
namespace {

constexpr int kFewestCompared = 8;
// A straggler comes last to so many of 100 calls, so much later than the next rank, and the next
// rank waits for it for most of its own time in the call.
constexpr int kOftenPercent = 60;
constexpr int64_t kLate = 200'000;  // ns
// A path is slow if even the fastest of so many calls takes so many times the predicted time. Of a
// call that another rank delays, the last rank has the time without the delay.
constexpr uint64_t kFewestCalls = 20;
constexpr int64_t kSlower = 4;
constexpr int64_t kLongMessage = 64 << 10;  // bytes; shorter ones tell the latency alone

std::string seconds(int64_t ns) { return format_seconds(std::chrono::nanoseconds(ns)); }

std::string rate(int64_t bytes) { return format_bytes(bytes) + "/s"; }

}  // namespace

std::vector<PathRate> path_rates(const std::vector<RecordedOperation>& operations) {
  std::map<int, PathRate> best;
  for (const RecordedOperation& one : operations) {
    for (const RecordedStep& step : one.steps) {
      if (step.peer < 0 || step.kind->sends || step.begin < 0 || step.end <= step.begin ||
          step.bytes < kLongMessage) {
        continue;
      }
      PathRate& path = best[step.peer];
      path.peer = step.peer;
      ++path.messages;
      const double seconds = static_cast<double>(step.end - step.begin) / 1e9;
      path.rate =
          std::max(path.rate, static_cast<int64_t>(static_cast<double>(step.bytes) / seconds));
    }
  }
  std::vector<PathRate> rates;
  for (const auto& [peer, path] : best) rates.push_back(path);
  return rates;
}

std::string Straggler::text(const GroupState& state) const {
  return state.name(rank) + " of group \"" + state.group + "\" comes last to " +
         std::to_string(last) + " of " + std::to_string(compared) + " collectives, " +
         seconds(late) +
         " after the next rank on average; the other ranks wait for it: look at its "
         "data, its processor or its device";
}

std::optional<Straggler> straggler(const GroupState& state) {
  if (state.size() < 2) return std::nullopt;
  struct Call {
    int ranks = 0, last = -1;
    int64_t least = INT64_MAX, next = INT64_MAX;
  };
  std::map<uint64_t, Call> calls;
  for (int rank = 0; rank < state.size(); ++rank) {
    if (!state.answers[rank]) return std::nullopt;
    for (const Arrival& one : state.answers[rank]->state.arrivals) {
      Call& call = calls[one.sequence];
      ++call.ranks;
      if (one.time < call.least) {
        call.next = call.least;
        call.least = one.time;
        call.last = rank;
      } else {
        call.next = std::min(call.next, one.time);
      }
    }
  }
  Straggler found;
  found.last_by_rank.resize(state.size());
  std::vector<int64_t> late(state.size()), waited(state.size());
  for (const auto& [sequence, call] : calls) {
    if (call.ranks != state.size()) continue;
    ++found.compared;
    ++found.last_by_rank[call.last];
    late[call.last] += call.next - call.least;
    waited[call.last] += call.next;
  }
  if (found.compared < kFewestCompared) return std::nullopt;
  const auto most = std::max_element(found.last_by_rank.begin(), found.last_by_rank.end());
  found.rank = static_cast<int>(most - found.last_by_rank.begin());
  found.last = *most;
  found.late = late[found.rank] / found.last;
  found.persistent = found.last * 100 >= found.compared * kOftenPercent && found.late >= kLate &&
                     late[found.rank] * 2 >= waited[found.rank];
  return found;
}

std::string slow_collective(const GroupState& state, const Predicted& predicted) {
  // By collective and size class, of all ranks.
  std::map<std::pair<Collective, int>, Fastest> fastest;
  std::map<std::pair<Collective, int>, int> ranks;
  for (const auto& answer : state.answers) {
    if (!answer) return "";
    for (const Fastest& one : answer->state.fastest) {
      const auto bytes = static_cast<uint64_t>(one.count) * size_of(one.dtype);
      const auto key = std::make_pair(one.collective, std::bit_width(bytes));
      ++ranks[key];
      Fastest& all = fastest[key];
      if (all.calls == 0 || one.time < all.time) {
        const uint64_t calls = all.calls == 0 ? one.calls : std::min(all.calls, one.calls);
        all = one;
        all.calls = calls;
      }
    }
  }
  std::string text;
  int64_t worst = kSlower;
  for (const auto& [key, one] : fastest) {
    if (ranks[key] != state.size() || one.calls < kFewestCalls) continue;
    const int64_t expected = predicted(one.collective, one.dtype, one.count);
    if (expected <= 0 || one.time / expected < worst) continue;
    worst = one.time / expected;
    text = "group \"" + state.group + "\": " + name(one.collective) + " of " +
           format_bytes(one.count * static_cast<int64_t>(size_of(one.dtype))) + " takes " +
           seconds(one.time) + " at best of " + std::to_string(one.calls) + " calls, expected " +
           seconds(expected);
  }
  if (text.empty()) return text;
  const PathRate* slowest = nullptr;
  int receiver = 0;
  for (int rank = 0; rank < state.size(); ++rank) {
    for (const PathRate& one : state.answers[rank]->state.rates) {
      if (slowest != nullptr && one.rate >= slowest->rate) continue;
      slowest = &one;
      receiver = rank;
    }
  }
  if (slowest != nullptr) {
    text += "; the slowest path is from " + state.name(slowest->peer) + " to " +
            state.name(receiver) + ", " + rate(slowest->rate) + " at best of " +
            std::to_string(slowest->messages) + " messages";
  }
  return text +
         "; measure with hetcomm bench, look at the network with hetcomm doctor, or price by "
         "hetcomm tune";
}

}  // namespace hetcomm
