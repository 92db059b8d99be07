#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "health/group_state.h"

namespace hetcomm {

class Health;

// The groups of this process, for dumps and metrics. They are not kept alive. Thread-safe.
void add_to_dumps(const std::shared_ptr<Health>& group);
std::vector<std::shared_ptr<Health>> live_groups();  // without those that this rank has left

// Writes a file that does not exist yet; never follows a link. Throws Error(transport).
void write_new_file(const std::string& path, const std::string& text, unsigned permissions);

// An inquiry of all groups of this process. Thread-safe.
class Dump {
 public:
  // Asks the groups. Without any lock; see Health::inquire().
  static std::shared_ptr<Dump> begin(const std::string& why, bool every_step);

  bool complete() const;
  // Waits until complete; false if the time passes first.
  bool wait(std::chrono::nanoseconds time) const;
  std::string text() const;   // the diagnosis of each group that has answered
  std::string trace() const;  // of all groups that have answered, see chrome_trace()

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  size_t awaited_ = 0;
  std::vector<GroupState> groups_;
};

// Whether HETCOMM_DUMP names a folder for the dumps of failures.
bool dumps_to_files();
// Has the state of a failed group and its trace written into this folder, by a thread of its own.
// Logs the state without a folder. Without any lock.
void tell_of_failure(const GroupState& state, int rank);
// Logs the states whose files are late: their file system stands still.
void look_at_dumps();
// Waits until all states are in files or in the log; bounded.
void await_dumps();

}  // namespace hetcomm
