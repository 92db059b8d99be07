#include "base/log.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <iterator>

#include "base/config.h"

namespace hetcomm {
namespace {

// A line waits so long for a reader of the log. After a lost line no line waits, until the reader
// reads again.
constexpr int kReaderBound = 200;  // ms

constexpr const char* kLevels[] = {"error", "warning", "info", "debug"};

// Whether a pipe takes PIPE_BUF bytes. Then a write does not wait, unless another process writes
// first.
bool writable(int ms) {
  pollfd log{STDERR_FILENO, POLLOUT, 0};
  int ready = 0;
  while ((ready = ::poll(&log, 1, ms)) < 0 && errno == EINTR) {
  }
  return ready > 0;
}

// A reader that stands still stops no thread of this process. It misses lines, and learns how many.
void write_line(std::string line) {
  static std::atomic<int> lost{0};
  const int before = lost.exchange(0);
  if (before > 0) {
    line = "\nhetcomm warning: the reader of this log stood still; lost lines: " +
           std::to_string(before) + "\n" + line;
  }
  for (size_t begin = 0; begin < line.size();) {
    if (!writable(before > 0 ? 0 : kReaderBound)) {
      lost += before + 1;
      return;
    }
    const size_t part = std::min<size_t>(line.size() - begin, PIPE_BUF);
    const ssize_t written = write(STDERR_FILENO, line.data() + begin, part);
    if (written < 0 && errno != EINTR) return;
    begin += static_cast<size_t>(std::max<ssize_t>(written, 0));
  }
}

LogLevel chosen_level() {
  const auto text = setting("HETCOMM_LOG_LEVEL");
  for (size_t i = 0; text && i < std::size(kLevels); ++i) {
    if (*text == kLevels[i]) return static_cast<LogLevel>(i);
  }
  if (text) {
    write_line(
        "hetcomm warning: HETCOMM_LOG_LEVEL: expected error, warning, info or debug, got \"" +
        *text + "\"; warning is used\n");
  }
  return LogLevel::warning;
}

}  // namespace

bool log_enabled(LogLevel level) {
  static const LogLevel chosen = chosen_level();
  return level <= chosen;
}

void log(LogLevel level, const std::string& text, int rank) {
  if (!log_enabled(level)) return;
  std::string line = std::string("hetcomm ") + kLevels[static_cast<size_t>(level)];
  if (rank >= 0) line += " rank " + std::to_string(rank);
  write_line(line + ": " + text + "\n");
}

}  // namespace hetcomm
