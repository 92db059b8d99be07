#pragma once

#include <functional>
#include <memory>

#include "base/deadline.h"

namespace hetcomm {

// A call on a thread of its own, for functions of vendor libraries that may never return. The
// function must own all that it uses and must not throw. Thread-safe. The destructor does not wait:
// a call that goes on keeps its thread.
class Detached {
 public:
  // Throws Error(vendor) if no thread can be started.
  explicit Detached(std::function<void()> function);
  bool wait(Deadline deadline) const;  // whether the call has ended

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace hetcomm
