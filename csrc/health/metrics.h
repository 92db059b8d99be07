#pragma once

#include <string>

#include "exec/executor.h"

namespace hetcomm {

// The counters of all groups of this process, as Prometheus text. Thread-safe; without any lock.
std::string metrics();

// Keeps a file of metrics() in the folder HETCOMM_METRICS, if set: the progress thread of the
// executor writes it anew every ten seconds.
void keep_metrics_file(Executor& executor);
// At process exit, so that no reader takes old counters for current ones.
void remove_metrics_file();

}  // namespace hetcomm
