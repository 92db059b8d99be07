#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"

namespace hetcomm {

// That one operation is over: what its waiters and listeners see, from any thread.
class Completion {
 public:
  using Listener = std::function<void(const Status&)>;

  // What an operation that is over leaves to do: to tell listeners and to release held memory.
  // Either may block, in the end for the interpreter's lock.
  struct Aftermath {
    std::vector<Listener> listeners;
    std::vector<std::shared_ptr<void>> held;

    bool empty() const { return listeners.empty() && held.empty(); }
  };

  bool done() const { return done_.load(); }
  // Publishes that the operation is over. Held memory is in the aftermath if released() by then.
  Aftermath announce();
  // Nothing refers to the buffers of the operation any more.
  void release() { released_ = true; }
  bool released() const { return released_; }
  // `listener` is called once, by whoever takes the aftermath, or at once if the operation is done.
  void when_done(Listener listener, const Status& status);
  // Keeps `memory` alive until the operation is over and released; where it is released later,
  // as long as this object.
  void hold(std::shared_ptr<void> memory);

 private:
  std::atomic<bool> done_{false};
  // There are listeners, or memory is held. Sequentially consistent, like done_: announce() stores
  // done_ and then loads watched_, a watcher stores watched_ and then loads done_.
  std::atomic<bool> watched_{false};
  std::atomic<bool> released_{false};
  std::mutex mutex_;  // guards what follows
  std::vector<Listener> listeners_;
  std::vector<std::shared_ptr<void>> held_;
};

}  // namespace hetcomm
