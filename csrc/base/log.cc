#include "base/log.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <iterator>

#include "base/config.h"
#include "base/file_thread.h"
#include "base/fork.h"

namespace hetcomm {
namespace {

// A line waits so long for a reader of the log. After a lost line no line waits, until the reader
// reads again.
constexpr int kReaderBound = 200;  // ms
constexpr size_t kMostLines = 64;  // for a file system that stands still

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

// A pipe without a reader raises SIGPIPE, which ends a program. A log line is not worth that.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigset_t pending;
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    pending_ = sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~WithoutSigpipe() {
    const int error = errno;
    const timespec at_once{};
    while (!pending_ && sigtimedwait(&sigpipe_, nullptr, &at_once) < 0 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;

 private:
  sigset_t sigpipe_{}, before_{};
  bool pending_ = false;
};

// Returns false if the reader takes nothing within `ms`.
bool write_within(const std::string& line, int ms) {
  const WithoutSigpipe quiet;
  for (size_t begin = 0; begin < line.size();) {
    if (!writable(ms)) return false;
    const size_t part = std::min<size_t>(line.size() - begin, PIPE_BUF);
    const ssize_t written = write(STDERR_FILENO, line.data() + begin, part);
    if (written < 0 && errno != EINTR) break;  // there is no reader
    begin += static_cast<size_t>(std::max<ssize_t>(written, 0));
  }
  return true;
}

struct LogFile {
  FileThread thread;
  std::atomic<bool> stands_still{false};
};

// A file takes a line at any time by poll(), and yet its file system may stand still. Such a line
// is written later.
bool write_to_file(const std::string& line) {
  auto& file = of_process<LogFile>();
  if (file.thread.wait(std::chrono::nanoseconds(0))) file.stands_still = false;
  if (!file.thread.post([line] { write_within(line, kReaderBound); }, kMostLines)) return false;
  const std::chrono::milliseconds bound(file.stands_still ? 0 : kReaderBound);
  file.stands_still = !file.thread.wait(bound);
  return true;
}

// A reader or a file system that stands still stops no thread of this process. The log lacks lines
// then, and says how many.
void write_line(std::string line) {
  static std::atomic<int> lost{0};
  const int before = lost.exchange(0);
  if (before > 0) {
    line = "\nhetcomm warning: the reader of this log stood still; lost lines: " +
           std::to_string(before) + "\n" + line;
  }
  const bool file = lseek(STDERR_FILENO, 0, SEEK_CUR) >= 0;
  const bool written =
      file ? write_to_file(line) : write_within(line, before > 0 ? 0 : kReaderBound);
  if (!written) lost += before + 1;
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
