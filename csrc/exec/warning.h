#pragma once

#include <functional>
#include <string>

namespace hetcomm {

// Tells the user about something that makes a job slow: one line. Without a sink the line goes to
// the log. A sink gets the line on a thread of its own, and the log has it as information only.
// Callers limit how often they warn. Thread-safe.
void warn(const std::string& text, int rank);

using WarningSink = std::function<void(const std::string& text)>;
void set_warning_sink(WarningSink sink);

}  // namespace hetcomm
