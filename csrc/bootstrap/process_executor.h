#pragma once

#include <memory>

#include "exec/executor.h"

namespace hetcomm {

// The executor of this process, made at the first call with the transports that this machine has.
// Number 0 is shared by all communicators. The other numbers serve further ranks of one group that
// are threads of this process. Thread-safe.
std::shared_ptr<Executor> process_executor(int number = 0);

// Ends the threads of all executors; for process exit.
void stop_process_executors();

}  // namespace hetcomm
