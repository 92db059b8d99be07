#pragma once

#include <chrono>
#include <functional>

namespace hetcomm {

// Runs `task` on a thread of its own, named "hetcomm-future". A task may block: it may need the
// interpreter's lock, or wait for other operations as torch's PowerSGD hook does. So no task runs
// on a thread that progresses runs, and no task waits for another task. Tasks begin in the order of
// these calls. Threads stay for later tasks; a child of fork() has its own threads. If no thread
// can be started, the task runs within this call. Thread-safe.
void run_callback(std::function<void()> task);

// Runs `task` here, and logs its exception.
void run_logged(const std::function<void()>& task);

// Waits until all tasks are over, at most for `bound`; for process exit.
void finish_callbacks(std::chrono::nanoseconds bound);

}  // namespace hetcomm
