#pragma once

#include <chrono>
#include <functional>

namespace hetcomm {

// Runs `task` on a thread of its own, named "hetcomm-future". A task may block: it may want the
// interpreter's lock, or wait for other operations (torch's PowerSGD hook does). So none runs on a
// thread that moves operations forward, and none waits for another. Tasks begin in the order of
// these calls. Threads are kept for later tasks; a child of fork() has its own. Thread-safe.
void run_callback(std::function<void()> task);

// Runs `task` here, and logs its exception.
void run_logged(const std::function<void()>& task);

// Waits until none is left, at most so long: for the end of the process.
void finish_callbacks(std::chrono::nanoseconds bound);

}  // namespace hetcomm
