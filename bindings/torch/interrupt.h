#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <string>

#include "base/fork.h"
#include "comm/communicator.h"

namespace hetcomm {

// A group as its operations know it, which may outlive it. Thread-safe.
class GroupReference {
 public:
  explicit GroupReference(Communicator* communicator) : communicator_(communicator) {}
  // Neither does anything in a child of fork().
  void abort(const std::string& reason);  // nothing once the group is gone
  void forget();                          // before the group goes

 private:
  const ProcessMark mark_;
  std::mutex mutex_;
  Communicator* communicator_;
};

// Calls Python's handlers of the signals that have come. Python calls handlers on the main thread
// only; elsewhere this does nothing. Throws the exception of a handler. KeyboardInterrupt,
// SystemExit and the like abort the group, so that the other ranks hear of them; `what` names the
// operation that this thread waited for.
void handle_signals(GroupReference& group, const std::function<std::string()>& what);

// `done_within(time)` waits at most so long and returns whether its operation is over. Waits by it
// for `timeout` in all, and calls handle_signals() in between; whether the operation is over.
bool wait_interruptibly(const std::function<bool(std::chrono::nanoseconds)>& done_within,
                        std::chrono::nanoseconds timeout, GroupReference& group,
                        const std::function<std::string()>& what);

}  // namespace hetcomm
