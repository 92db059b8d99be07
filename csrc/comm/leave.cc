// A rank leaves its group.

#include "base/log.h"
#include "bootstrap/group.h"
#include "comm/communicator.h"

namespace hetcomm {
namespace {

// The group may notice after 6 s that a NIC has failed. Then parts of sent messages travel again.
constexpr auto kLeaveBound = std::chrono::seconds(10);
// A native library's call is aborted after 30 s and returns soon after.
constexpr auto kLaunchBound = std::chrono::seconds(40);
// No other thread keeps the lock so long, but in a library that stands still.
constexpr auto kLockedOut = std::chrono::seconds(5);
// The caller's stream may have passed an operation whose end the host has not seen yet.
constexpr auto kLastLook = std::chrono::milliseconds(100);

}  // namespace

void Communicator::leave() {
  const std::shared_ptr<RunQueue>& queue = group_->queue;
  Executor& executor = *group_->executor;
  if (mark_.inherited()) {
    // A forked child shares descriptors with its parent, and the parent goes on. So the child says
    // nothing, and never destroys the queue.
    new std::shared_ptr<RunQueue>(queue);
    return;
  }
  std::lock_guard lock(leave_mutex_);
  if (left_) return;
  left_ = true;
  const Deadline deadline(kLeaveBound);
  const Status used_afterwards(Code::aborted,
                               "the group was destroyed on rank " + std::to_string(rank()) +
                                   " while operations were under way, or used afterwards",
                               rank(), rank());
  // A library that stands still keeps the lock, and the group with it. The other ranks still hear
  // that this rank leaves.
  bool locked_out = false;
  const auto lock_executor = [&] {
    auto held = locked_out ? executor.try_lock() : executor.lock_within(kLockedOut);
    locked_out |= !held;
    return held;
  };
  bool fails = !wait_until_idle(Deadline(kLastLook));
  if (const auto held = lock_executor()) fails &= queue->failure.ok();
  if (fails && !locked_out) locked_out = !executor.fail(*queue, used_afterwards, kLockedOut);
  if (group_->health) {
    group_->health->poll();  // tells the other ranks of a failure, if any
    group_->health->await_inquiry_after_failure();
    group_->health->say_goodbye(deadline);
  }
  Paths& paths = *queue->paths;
  bool drained = false, returned = false, kept = true;
  if (const auto held = lock_executor()) {
    paths.close(queue->failure.ok());
    if (queue->failure.ok()) queue->failure = used_afterwards;
  }
  if (!locked_out) {
    drained = executor.drain([&] { return paths.closed() && queue->active.empty(); }, deadline);
    returned = executor.drain([&] { return !queue->launching; }, Deadline(kLaunchBound));
  }
  if (const auto held = lock_executor(); held && !locked_out) {
    if (returned) {
      std::erase_if(queue->unreleased, [](const std::shared_ptr<Run>& run) {
        run->poll_release();
        return !run->unreleased();
      });
    }
    kept = !drained || !returned || !queue->unreleased.empty();
    if (!kept) paths.drop_links();
  }
  if (kept) {
    log(locked_out ? LogLevel::warning : LogLevel::info,
        "group \"" + group_->name + "\" left " +
            (locked_out ? "while a thread stands still inside a driver or UCX; the group's"
                        : "with operations that a peer or a device never completed; their") +
            " memory is kept until the process ends",
        rank());
    new std::shared_ptr<RunQueue>(queue);
  }
  const bool removed = !group_->health || executor.remove(group_->health.get());
  if (group_->health && removed) group_->health->end();
  group_->rail_listeners.reset();
  // Otherwise a thread inside the library needs the queue.
  stuck_ = locked_out || !removed;
  if (returned && !stuck_) executor.detach(queue);
}

}  // namespace hetcomm
