#pragma once

#include <optional>

#include "comm/communicator.h"

namespace hetcomm {

// So long a wait goes on before Python's handlers of signals get their turn.
inline constexpr std::chrono::nanoseconds kSignalInterval = std::chrono::milliseconds(100);

// Waits until `work` is done, at most `seconds`, by default as long as the operation itself; the
// interpreter goes on meanwhile, and Ctrl-C ends the wait. With the interpreter's lock. Throws
// Error, or what a signal's handler raised.
void wait_released(const Work& work, std::optional<double> seconds);

}  // namespace hetcomm
