#include "base/log.h"

#include <unistd.h>

#include <cerrno>
#include <iterator>

#include "base/config.h"

namespace hetcomm {
namespace {

constexpr const char* kLevels[] = {"error", "warning", "info", "debug"};

LogLevel chosen_level() {
  const auto text = setting("HETCOMM_LOG_LEVEL");
  for (size_t i = 0; text && i < std::size(kLevels); ++i) {
    if (*text == kLevels[i]) return static_cast<LogLevel>(i);
  }
  if (text) {
    const std::string line = std::string("hetcomm warning: HETCOMM_LOG_LEVEL: expected error, ") +
                             "warning, info or debug, got \"" + *text + "\"; warning is used\n";
    [[maybe_unused]] ssize_t written = write(STDERR_FILENO, line.data(), line.size());
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
  line += ": " + text + "\n";
  while (write(STDERR_FILENO, line.data(), line.size()) < 0 && errno == EINTR) {
  }
}

}  // namespace hetcomm
