#pragma once

#include <functional>

#include "island/shm/segment.h"

namespace hetcomm::shm {

// Wakes sleeping members. A sleeper stores the members that it awaits, passes a sequentially
// consistent fence, and looks for work again. An active member stores its work, passes such a
// fence, and looks for sleepers. One of the two fences comes first, so at least one side sees the
// other. Owned by an island; used under the executor's lock.
class Doorbell {
 public:
  Doorbell(Segment& segment, int member, std::function<void(int)> wake)
      : segment_(segment), member_(member), wake_(std::move(wake)) {}

  // Members beyond 64 share bits, so a few wake-ups are needless.
  static uint64_t bit(int member) { return uint64_t{1} << (member % 64); }

  // Announces sleep until a member of the mask `awaited` acts; 0 takes the announcement back.
  void await(uint64_t awaited) {
    auto& mine = segment_.member(member_).awaited;
    if (awaited == 0) {
      mine.store(0, std::memory_order_relaxed);
      return;
    }
    mine.store(awaited, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }

  // Wakes the sleepers that await this member; with `all`, every sleeper.
  void ring(bool all = false) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const int members = static_cast<int>(segment_.shape().members);
    for (int peer = 0; peer < members; ++peer) {
      auto& awaited = segment_.member(peer).awaited;
      const uint64_t seen = awaited.load(std::memory_order_relaxed);
      if (seen == 0 || peer == member_ || !(all || (seen & bit(member_)))) continue;
      // The exchange lets only one of several members wake the sleeper.
      if (awaited.exchange(0, std::memory_order_acq_rel) != 0 && wake_) wake_(peer);
    }
  }

 private:
  Segment& segment_;
  const int member_;
  const std::function<void(int)> wake_;
};

}  // namespace hetcomm::shm
