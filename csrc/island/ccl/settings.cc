#include <mutex>
#include <sstream>
#include <string_view>

#include "base/config.h"
#include "base/log.h"
#include "base/text.h"
#include "device/vendor.h"
#include "island/ccl/ccl.h"

namespace hetcomm {
namespace {

constexpr const char* kVariable = "HETCOMM_CCL";
// 0: the library connects in set-up, else in the first collectives. In set-up it waits for the
// other ranks, so all ranks need one value (NCCL, initTransportsRank).
constexpr const char* kConnect = "NCCL_RUNTIME_CONNECT";
constexpr int kMostCtas = 256;

[[noreturn]] void refuse(const std::string& expected, const std::string& got) {
  throw Error(Code::invalid_argument, std::string(kVariable) + ": expected " + expected +
                                          "; got \"" + got + "\"; correct or unset the variable");
}

int number(const std::string& part, const std::string& value, int lowest, int highest) {
  int64_t found = -1;
  try {
    found = parse_bytes(value);
  } catch (const Error&) {
  }
  if (found < lowest || found > highest) {
    refuse("a whole number from " + std::to_string(lowest) + " to " + std::to_string(highest),
           part);
  }
  return static_cast<int>(found);
}

// Each part of HETCOMM_CCL was once a variable. SPLIT_SHARE has no part, since engines are not
// split any more.
void refuse_former_variables() {
  for (const char* part : {"SPLIT_SHARE", "MIN_CTAS", "MAX_CTAS", "BLOCKING"}) {
    const std::string former = std::string(kVariable) + "_" + part;
    const auto value = setting(former.c_str());
    if (!value) continue;
    if (std::string_view(part) == "SPLIT_SHARE") {
      throw Error(Code::invalid_argument,
                  former + ": expected no such variable, since engines are not split; unset it");
    }
    std::string key = part;
    for (char& letter : key) letter = to_lower(letter);
    throw Error(Code::invalid_argument, former + ": expected " + kVariable +
                                            " in its place; unset it, and set " + kVariable +
                                            "=\"" + key + "=" + *value + "\", after a comma if " +
                                            kVariable + " has other parts");
  }
}

}  // namespace

void read_ccl_settings(CclOptions& options) {
  refuse_former_variables();
  std::istringstream parts(setting(kVariable, ""));
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (key == "min_ctas") {
      options.min_ctas = number(part, value, 1, kMostCtas);
    } else if (key == "max_ctas") {
      options.max_ctas = number(part, value, 1, kMostCtas);
    } else if (key == "blocking") {
      options.blocking = number(part, value, 0, 1) == 1;
    } else {
      refuse("min_ctas=, max_ctas= or blocking=, separated by commas", part);
    }
  }
  // The user lets the library connect in the first collectives. These must not block the host.
  if (environment_variable(kConnect).value_or("0") != "0") options.blocking = false;
  if (options.min_ctas > 0 && options.max_ctas > 0 && options.min_ctas > options.max_ctas) {
    refuse("min_ctas to be at most max_ctas, which is " + std::to_string(options.max_ctas),
           "min_ctas=" + std::to_string(options.min_ctas));
  }
}

void set_ccl_environment(const CclEnvironment& environment, const Vendor& vendor) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  for (const auto& [variable, value] : environment) {
    const auto present = environment_variable(variable.c_str());
    if (!present) {
      set_environment_variable(variable.c_str(), value);
    } else if (*present != value && "=" + *present != value) {  // "=" only forbids longer names
      log(LogLevel::warning, std::string(vendor.ccl.name) + ": " + variable + "=" + *present +
                                 " is set and stays; the facts of all ranks suggest " + value);
    }
  }
}

bool ask_ccl_to_connect() {
  static const bool asked = [] {
    if (environment_variable(kConnect)) return false;
    set_environment_variable(kConnect, "0");
    return true;
  }();
  return asked;
}

std::string describe_ccl_settings(const CclOptions& options) {
  const auto ctas = [](const char* key, int value) {
    return value > 0 ? key + std::to_string(value) + "," : "";
  };
  return std::string(kVariable) + "=" + ctas("min_ctas=", options.min_ctas) +
         ctas("max_ctas=", options.max_ctas) + "blocking=" + (options.blocking ? "1" : "0") + " " +
         kConnect + "=" + environment_variable(kConnect).value_or("0");
}

}  // namespace hetcomm
