#include "health/watched_group.h"

#include <utility>

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

Status WatchedGroup::queue_failure() const {
  const auto held = executor.lock();
  return queue->failure;
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
