#pragma once

#include <functional>
#include <memory>

#include "base/deadline.h"

namespace hetcomm {

// A call on a thread of its own, which is left behind if it does not end: for functions of vendor
// libraries that may never return. What the function uses it must own, and it must not throw.
// Thread-safe; may be destroyed while the call goes on.
class Detached {
 public:
  // Throws Error(vendor) when the process cannot have another thread.
  explicit Detached(std::function<void()> function);
  bool wait(Deadline deadline) const;  // whether the call has ended

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace hetcomm
