#pragma once

#include <optional>

#include "comm/work.h"

namespace hetcomm {

// A wait calls Python's handlers of signals so often.
inline constexpr std::chrono::nanoseconds kSignalInterval = std::chrono::milliseconds(100);

// Waits until `work` is done, at most `seconds`, by default for the operation's timeout. Called
// with the interpreter's lock, but the interpreter goes on meanwhile, and Ctrl-C ends the wait.
// Throws Error, or the exception of a signal's handler.
void wait_released(const Work& work, std::optional<double> seconds);

}  // namespace hetcomm
