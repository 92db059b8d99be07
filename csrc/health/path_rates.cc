#include "health/path_rates.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/config.h"

namespace hetcomm {
namespace {

constexpr int64_t kLongMessage = 64 << 10;  // bytes; shorter ones tell the latency alone
constexpr size_t kMostMessages = 512;       // of a rank
constexpr int kMostEach = 16;               // of a rank, from or to one peer
constexpr double kFastest = 1e18;           // bytes per second

struct Path {
  double rate = 0;  // bytes per second, at best
  int messages = 0;
};

// [sender, receiver]
std::map<std::pair<int, int>, Path> paths(const GroupState& state) {
  using Message = std::tuple<int, int, uint64_t, int, int64_t>;
  std::map<Message, int64_t> begins;
  for (int rank = 0; rank < state.size(); ++rank) {
    if (!state.answers[rank]) continue;
    for (const MessageEnd& one : state.answers[rank]->state.messages) {
      if (!one.sends) continue;
      begins[{rank, one.peer, one.sequence, one.tag, one.bytes}] =
          one.at + state.answers[rank]->offset;
    }
  }
  std::map<std::pair<int, int>, Path> found;
  for (int rank = 0; rank < state.size(); ++rank) {
    if (!state.answers[rank]) continue;
    for (const MessageEnd& one : state.answers[rank]->state.messages) {
      if (one.sends) continue;
      const auto begin = begins.find({one.peer, rank, one.sequence, one.tag, one.bytes});
      if (begin == begins.end()) continue;
      const int64_t time = one.at + state.answers[rank]->offset - begin->second;
      Path& path = found[{one.peer, rank}];
      ++path.messages;
      const double rate =
          static_cast<double>(one.bytes) * 1e9 / static_cast<double>(std::max<int64_t>(time, 1));
      path.rate = std::clamp(rate, path.rate, kFastest);
    }
  }
  return found;
}

}  // namespace

std::vector<MessageEnd> long_messages(const std::vector<RecordedOperation>& operations,
                                      uint64_t since) {
  std::vector<MessageEnd> found;
  std::map<std::pair<int, bool>, int> of_peer;  // and of a direction
  for (auto one = operations.rbegin(); one != operations.rend(); ++one) {
    const auto collective = static_cast<Collective>(one->call.collective);
    if (!synchronizes(collective) || one->call.sequence < since) continue;
    for (const RecordedStep& step : one->steps) {
      if (step.peer < 0 || step.begin < 0 || step.end < 0 || step.bytes < kLongMessage) continue;
      const bool sends = step.kind->sends;
      if (found.size() == kMostMessages) return found;
      if (++of_peer[{step.peer, sends}] > kMostEach) continue;
      found.push_back({step.peer, step.tag, sends, one->call.sequence, step.bytes,
                       sends ? step.begin : step.end});
    }
  }
  return found;
}

std::string slowest_path(const GroupState& state) {
  const auto found = paths(state);
  const auto slowest =
      std::min_element(found.begin(), found.end(),
                       [](const auto& a, const auto& b) { return a.second.rate < b.second.rate; });
  if (slowest == found.end()) return "";
  const auto& [ends, path] = *slowest;
  return "from " + state.name(ends.first) + " to " + state.name(ends.second) + ", " +
         format_bytes(static_cast<int64_t>(path.rate)) + "/s at best of " +
         std::to_string(path.messages) + " messages";
}

}  // namespace hetcomm
