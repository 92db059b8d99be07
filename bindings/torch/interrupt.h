#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <string>

#include "base/fork.h"
#include "comm/communicator.h"

namespace hetcomm {

// A reference of operations to their group, which may end before them. Thread-safe.
class GroupReference {
 public:
  explicit GroupReference(Communicator* communicator) : communicator_(communicator) {}
  // Both do nothing in a child of fork().
  void abort(const std::string& reason);  // does nothing after detach()
  void detach();                          // called before the group ends

 private:
  const ProcessMark mark_;
  std::mutex mutex_;
  Communicator* communicator_;
};

// Calls Python's handlers of pending signals. Python calls handlers on the main thread only; on
// other threads this does nothing. Throws the exception of a handler. KeyboardInterrupt, SystemExit
// and the like also abort the group on all ranks; `what` names the operation that this thread
// waited for.
void handle_signals(GroupReference& group, const std::function<std::string()>& what);

// Waits for an operation for at most `timeout`, calls handle_signals() now and then, and returns
// whether the operation is over. `done_within(time)` waits for at most `time`, and returns the
// same.
bool wait_interruptibly(const std::function<bool(std::chrono::nanoseconds)>& done_within,
                        std::chrono::nanoseconds timeout, GroupReference& group,
                        const std::function<std::string()>& what);

}  // namespace hetcomm
