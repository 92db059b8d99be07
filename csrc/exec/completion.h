#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"

namespace hetcomm {

// Whether one operation is over, for its waiters and listeners. Thread-safe.
class Completion {
 public:
  using Listener = std::function<void(const Status&)>;

  // After an operation its listeners are called and its memory is released. Both may block, in the
  // end for the interpreter's lock.
  struct Aftermath {
    std::vector<Listener> listeners;
    std::vector<std::shared_ptr<void>> memory;

    bool empty() const { return listeners.empty() && memory.empty(); }
  };

  bool done() const { return done_.load(); }
  // Publishes that the operation is over. The aftermath has the memory if released() by then.
  Aftermath announce();
  // Nothing refers to the buffers of the operation any more.
  void release() { released_ = true; }
  bool released() const { return released_; }
  // `listener` is called once: by the owner of the aftermath or, if the operation is over already,
  // within this call.
  void when_done(Listener listener, const Status& status);
  // Keeps `memory` alive until the operation is over. If its buffers are not released by then,
  // keeps `memory` as long as this object lives.
  void keep_alive(std::shared_ptr<void> memory);
  // The source line that waits for the operation, for errors. Empty if the operation was not late,
  // or if no thread waits for it.
  void note_caller(const std::string& line);
  std::string caller() const;

 private:
  std::atomic<bool> done_{false};
  // There are listeners, or memory. Sequentially consistent, like done_: announce() stores done_
  // and then loads watched_; a watcher stores watched_ and then loads done_.
  std::atomic<bool> watched_{false};
  std::atomic<bool> released_{false};
  mutable std::mutex mutex_;  // guards the following members
  std::vector<Listener> listeners_;
  std::vector<std::shared_ptr<void>> memory_;
  std::unique_ptr<std::string> caller_;
};

}  // namespace hetcomm
