#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "exec/flight_recorder.h"

namespace hetcomm {

// One end of a long message of a collective, for the rate of its path.
struct MessageEnd {
  int peer = 0, tag = 0;
  bool sends = false;
  uint64_t sequence = 0;  // of the collective
  int64_t bytes = 0;
  int64_t at = 0;  // the begin of a send, the end of a receive
};

// What one rank tells of itself when a rank of its group inquires. Times are ns of the clock of the
// rank.
struct RankState {
  uint64_t process = 0;                       // its id
  std::string clock;                          // ranks of one name have one clock
  int64_t now = 0;                            // of this answer, on this clock
  uint64_t calls = 0;                         // collectives called so far
  std::string note;                           // why the operations are missing; empty otherwise
  std::vector<RecordedOperation> operations;  // oldest first
  // Only for the watch over the group's pace, see pace.h.
  std::vector<CallTime> call_times;
  std::vector<MessageEnd> messages;

  // Leaves out operations until the record has at most `most` bytes, if call times and messages
  // leave room: finished operations first, and of these the oldest first. `every_step`: packs
  // finished steps, too.
  std::string pack(size_t most, bool every_step) const;
  // Throws Error(invalid_argument) on a malformed record.
  static RankState unpack(const std::string& bytes, int size);
};

// "boot id, time namespace": ranks with one such name read one clock.
std::string clock_name();

}  // namespace hetcomm
