#include "base/config.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <mutex>

#include "base/fork.h"
#include "base/status.h"
#include "base/text.h"

namespace hetcomm {
namespace {

std::mutex& environment_mutex() {
  static auto* made = new MutexAcrossFork;
  return *made;
}

}  // namespace

std::optional<std::string> environment_variable(const char* name) {
  std::lock_guard lock(environment_mutex());
  const char* text = std::getenv(name);
  return text ? std::optional<std::string>(text) : std::nullopt;
}

void set_environment_variable(const char* name, const std::optional<std::string>& value) {
  std::lock_guard lock(environment_mutex());
  value ? setenv(name, value->c_str(), 1) : unsetenv(name);
}

std::optional<std::string> setting(const char* variable) {
  std::optional<std::string> text = environment_variable(variable);
  return text && !text->empty() ? text : std::nullopt;
}

std::string setting(const char* variable, const std::string& otherwise) {
  return setting(variable).value_or(otherwise);
}

int64_t setting(const char* variable, int64_t otherwise, int64_t lowest, int64_t highest) {
  auto text = setting(variable);
  if (!text) return otherwise;
  std::string why;
  try {
    int64_t value = parse_bytes(*text);
    if (value >= lowest && value <= highest) return value;
  } catch (const Error&) {
  }
  throw Error(Code::invalid_argument, std::string(variable) + ": expected a whole number from " +
                                          std::to_string(lowest) + " to " +
                                          std::to_string(highest) + "; got \"" + *text +
                                          "\"; correct or unset the variable");
}

bool deterministic() { return setting("HETCOMM_DETERMINISTIC", 0, 0, 1) == 1; }

int64_t parse_bytes(const std::string& text) {
  int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit(end, text.data() + text.size());
  int64_t factor = 0;
  if (unit.empty()) factor = 1;
  if (unit == "k" || unit == "K") factor = int64_t{1} << 10;
  if (unit == "m" || unit == "M") factor = int64_t{1} << 20;
  if (unit == "g" || unit == "G") factor = int64_t{1} << 30;
  if (error != std::errc() || factor == 0 || value < 0 || value > INT64_MAX / factor) {
    throw Error(Code::invalid_argument,
                "expected a size such as 4096, 256k, 16M or 1G; got \"" + text + "\"");
  }
  return value * factor;
}

std::string format_bytes(int64_t bytes) {
  constexpr const char* units[] = {" B", " KiB", " MiB", " GiB", " TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) value /= 1024, ++unit;
  return format_fixed(value, value == std::floor(value) ? 0 : 1) + units[unit];
}

std::string format_seconds(std::chrono::duration<double> time) {
  const double seconds = time.count();
  const bool minutes = seconds >= 600 && std::fmod(seconds, 60) == 0;
  if (seconds == 0) return "0 s";
  if (seconds < 0) return "-" + format_seconds(-time);
  if (seconds < 0.9995e-3) return format_general(seconds * 1e6, 3) + " us";
  if (seconds < 0.9995) return format_general(seconds * 1e3, 3) + " ms";
  if (minutes && seconds < 7200) return format_fixed(seconds / 60, 0) + " min";
  if (minutes && std::fmod(seconds, 3600) == 0) return format_fixed(seconds / 3600, 0) + " h";
  return (seconds < 999.5 ? format_general(seconds, 3) : format_fixed(seconds, 0)) + " s";
}

std::string in_ascii(std::string text) {
  std::replace_if(text.begin(), text.end(), [](unsigned char c) { return c >= 0x80; }, '?');
  return text;
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = "";
  gethostname(name, sizeof name - 1);
  return in_ascii(name);
}

}  // namespace hetcomm
