#include <algorithm>

#include "base/config.h"
#include "health/group_state.h"

namespace hetcomm {
namespace {

constexpr size_t kMostSteps = 3, kMostOperations = 2;  // on the line of a rank
constexpr int kMostRanks = 64;                         // with a line

std::string since(const RankState& state, int64_t then) {
  return format_seconds(std::chrono::nanoseconds(std::max<int64_t>(state.now - then, 0)));
}

std::string and_more(size_t left) {
  return left > 0 ? " and " + std::to_string(left) + " more" : "";
}

std::string steps_text(const RankState& state, const RecordedOperation& operation) {
  std::vector<const RecordedStep*> open;
  for (const RecordedStep& step : operation.steps) {
    if (step.end < 0) open.push_back(&step);
  }
  if (operation.started < 0) return ", which waits for an earlier operation";
  if (operation.message() || open.empty()) return "";
  std::string text;
  for (size_t i = 0; i < std::min(open.size(), kMostSteps); ++i) {
    const RecordedStep& step = *open[i];
    text += (text.empty() ? "" : ", ") + std::string("step ") + std::to_string(step.index) + ": " +
            step.kind->name;
    if (step.peer >= 0) {
      text += (step.kind->sends ? " to rank " : " from rank ") + std::to_string(step.peer);
    }
    if (step.begin >= 0) text += " for " + since(state, step.begin);
  }
  return " at " + text + and_more(open.size() - std::min(open.size(), kMostSteps)) + " of " +
         std::to_string(operation.step_count) + (operation.step_count == 1 ? " step" : " steps");
}

std::string rank_text(const RankState& state) {
  if (!state.note.empty()) return state.note;
  std::vector<const RecordedOperation*> unfinished;
  const RecordedOperation* last = nullptr;
  for (const RecordedOperation& one : state.operations) {
    if (one.succeeded()) {
      last = &one;
    } else {
      unfinished.push_back(&one);
    }
  }
  std::string text;
  for (size_t i = 0; i < std::min(unfinished.size(), kMostOperations); ++i) {
    const RecordedOperation& one = *unfinished[i];
    text += (text.empty() ? "" : "; ") +
            (one.failed() ? std::string("failed (") + name(one.code) + ") in " : "in ") +
            describe(one.call, one.user_tag) + " for " +
            format_seconds(std::chrono::nanoseconds(
                std::max<int64_t>((one.failed() ? one.ended : state.now) - one.submitted, 0))) +
            steps_text(state, one);
  }
  text += and_more(unfinished.size() - std::min(unfinished.size(), kMostOperations));
  if (unfinished.empty()) text = "in no operation";
  if (last != nullptr) {
    text += "; the last over is " + describe(last->call, last->user_tag) + ", " +
            since(state, last->ended) + " ago";
  }
  return text + "; " + std::to_string(state.calls) +
         (state.calls == 1 ? " collective called" : " collectives called");
}

}  // namespace

std::string GroupState::name(int rank) const {
  const std::string& host = places[rank].host;
  return "rank " + std::to_string(rank) + (host.empty() ? "" : " on " + host);
}

std::string diagnosis(const GroupState& state) {
  std::string text = "state of group \"" + state.group + "\" of " + std::to_string(state.size()) +
                     " ranks, gathered by rank " + std::to_string(state.asker) + ": " + state.why +
                     "\n";
  const std::vector<Culprit> found = culprits(state);
  for (const Culprit& one : found) text += "  likely culprit: " + one.text + "\n";
  if (found.empty()) {
    text += any_stalled(state) ? "  no rank is a likely culprit\n"
                               : "  no rank has waited for a second\n";
  }
  int64_t error = 0;
  int lines = 0;
  for (int rank = 0; rank < state.size(); ++rank) {
    if (!state.answers[rank] || ++lines > kMostRanks) continue;
    const GroupState::Answer& answer = *state.answers[rank];
    error = std::max(error, answer.error);
    text += "  " + state.name(rank) + ", process " + std::to_string(answer.state.process) + ": " +
            rank_text(answer.state) + "\n";
  }
  if (lines > kMostRanks) {
    text += "  " + std::to_string(lines - kMostRanks) + " more ranks answered\n";
  }
  if (error > 0) {
    text += "  times of other hosts are aligned within " +
            format_seconds(std::chrono::nanoseconds(error)) + "\n";
  }
  return text;
}

}  // namespace hetcomm
