#pragma once

#include <string>
#include <vector>

#include "health/group_state.h"

namespace hetcomm {

// Ends of the newest long messages, of collectives that synchronize, from the number `since` on.
// Ranks of other collectives may begin at any time, which would make their paths look slow.
std::vector<MessageEnd> long_messages(const std::vector<RecordedOperation>& operations,
                                      uint64_t since);

// The path whose fastest message is slower than that of any other path: "from rank 0 on red0 to
// rank 1 on blue0, 11.8 MiB/s at best of 31 messages"; empty without messages. A message lasts from
// the begin of its send to the end of its receive. So a rank that posts either late makes no path
// look fast.
std::string slowest_path(const GroupState& state);

}  // namespace hetcomm
