#pragma once

#include <string>

namespace hetcomm {

// Lines to standard error, "hetcomm <level> [rank r] text"; HETCOMM_LOG_LEVEL = error, warning
// (default), info or debug chooses. Thread-safe: one write per line.
enum class LogLevel { error, warning, info, debug };

bool log_enabled(LogLevel level);
void log(LogLevel level, const std::string& text, int rank = -1);

}  // namespace hetcomm
