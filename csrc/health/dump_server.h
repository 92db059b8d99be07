#pragma once

#include "exec/executor.h"

namespace hetcomm {

// Answers dumps of `hetcomm dump`: over a socket in the abstract namespace, named
// "hetcomm-dump-PID-RANDOM", to processes of this user or of root. The progress thread of the
// executor serves it. Without the socket, logs why.
void serve_dumps(Executor& executor);

}  // namespace hetcomm
