#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace hetcomm {

// Settings from HETCOMM_* environment variables; an empty value counts as unset. Throws
// Error(invalid_argument) on an unreadable value.
std::optional<std::string> setting(const char* variable);
std::string setting(const char* variable, const std::string& otherwise);
int64_t setting(const char* variable, int64_t otherwise, int64_t lowest, int64_t highest);

// HETCOMM_DETERMINISTIC: results have the same bits in every run, not only on every rank.
bool deterministic();

// The environment, for variables that hetcomm itself sets for a library. A lock keeps getenv() and
// setenv() apart, because several threads may set up ranks or groups.
std::optional<std::string> environment_variable(const char* name);
void set_environment_variable(const char* name, const std::optional<std::string>& value);

// "256k", "16M", "1G" or plain bytes (powers of 1024).
int64_t parse_bytes(const std::string& text);
std::string format_bytes(int64_t bytes);
// "12.3 us", "141 ms", "1.5 s", "1800 s", "30 min"; never with an exponent.
std::string format_seconds(std::chrono::duration<double> time);

std::string in_ascii(std::string text);  // "?" for each byte beyond ASCII
std::string host_name();                 // of this machine, for people; in ASCII

}  // namespace hetcomm
