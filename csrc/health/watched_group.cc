#include "health/watched_group.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/joined.h"

namespace hetcomm {

WatchedGroup::WatchedGroup(Executor& executor, std::shared_ptr<RunQueue> queue, int rank, int size,
                           const std::string& address, ControlPlane::Owner& owner)
    : executor(executor),
      queue(std::move(queue)),
      rank(rank),
      size(size),
      control(rank, size, address, owner) {}

void WatchedGroup::fail(const Status& status) {
  if (cause.ok()) cause = status;
  changed.notify_all();
}

bool WatchedGroup::note_loss(const LossNews& news) {
  const Loss loss{Clock::now(), std::chrono::milliseconds(news.silence)};
  return !left(news.rank) && lost.emplace(news.rank, loss).second;
}

void WatchedGroup::tell_loss(const LossNews& news) {
  if (note_loss(news)) flood(news);
}

Status WatchedGroup::losses() const {
  Status::Details details{.code = Code::peer_failed, .rank = rank};
  std::vector<int> gone, unreachable;
  std::chrono::milliseconds silence{0};
  for (const auto& [peer, loss] : lost) {
    details.failed.push_back(peer);
    silence = std::max(silence, loss.silence);
    (loss.silence.count() > 0 ? unreachable : gone).push_back(peer);
  }
  if (details.failed.empty()) return {};
  details.peer = details.failed.front();
  std::vector<std::string> words;
  if (gone.size() == 1) words.push_back("rank " + joined(gone) + " " + kGone + "; see its own log");
  if (gone.size() > 1) {
    words.push_back("ranks " + joined(gone) +
                    " are gone: their processes ended or their hosts became unreachable; see "
                    "their own logs");
  }
  if (!unreachable.empty()) {
    words.push_back((unreachable.size() == 1
                         ? "rank " + joined(unreachable) + " is unreachable: its host"
                         : "ranks " + joined(unreachable) + " are unreachable: their host") +
                    ", or the network to it, has given no sign of life, or acknowledged nothing, "
                    "for " +
                    format_seconds(silence) +
                    "; look at the host and its network, or raise HETCOMM_PEER_TIMEOUT");
  }
  details.message = joined(words, "; ");
  return Status(std::move(details));
}

std::unique_lock<std::mutex> WatchedGroup::hold() {
  auto held = stuck_ ? executor.try_lock() : executor.lock_within(kLockBound);
  stuck_ = !held;
  return held;
}

Status WatchedGroup::queue_failure() {
  const auto held = hold();
  return held ? queue->failure : Status();
}

Status WatchedGroup::left_too_early(int peer, const std::string& where) const {
  const GoodbyeNews& goodbye = departures.at(peer).news;
  return Status(Code::peer_failed,
                "rank " + std::to_string(peer) + " has left the group after " +
                    std::to_string(goodbye.calls) + " collectives, but this rank " + where +
                    "; make the same calls on every rank" +
                    (goodbye.refusal.empty() ? "" : "; " + goodbye.refusal),
                rank, peer);
}

}  // namespace hetcomm
