#pragma once

#include <string>

namespace hetcomm {

// Writes lines to standard error, "hetcomm <level> [rank r] text", up to the level of
// HETCOMM_LOG_LEVEL: error, warning (default), info or debug. Thread-safe: one write per line.
enum class LogLevel { error, warning, info, debug };

bool log_enabled(LogLevel level);
void log(LogLevel level, const std::string& text, int rank = -1);

}  // namespace hetcomm
