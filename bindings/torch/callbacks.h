#pragma once

#include <chrono>
#include <functional>

namespace hetcomm {

// Runs `task` on a thread of its own. Whoever completes a future runs what users have attached to
// it, which may wait for other operations (torch's PowerSGD hook does): neither the thread that
// moves operations forward nor one that waits for one may be held up by that, nor one such task by
// another. Threads are kept for later tasks. Thread-safe.
void run_callback(std::function<void()> task);

// Waits until none is left, at most so long: for the end of the process.
void finish_callbacks(std::chrono::nanoseconds bound);

}  // namespace hetcomm
