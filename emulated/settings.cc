#include "emulated/settings.h"

#include <map>

#include "base/config.h"
#include "base/status.h"

namespace hetcomm::emulated {

namespace {

constexpr int64_t kFastest = int64_t{1} << 40;  // bytes per second

[[noreturn]] void refuse(const std::string& text) {
  throw Error(
      Code::invalid_argument,
      "HETCOMM_EMULATED_FAULT: expected a fault such as init_hang, init_error, "
      "async_error:N, hang:N, split_hang, split_error, call_hang:N, abort_hang, "
      "device_error:N, query_hang:N, version:N, old_version or old_runtime, with @M for member M "
      "only; got \"" +
          text + "\"; correct or unset the variable");
}

int64_t number(const std::string& digits, const std::string& text) {
  if (digits.empty() || digits.size() > 12 ||
      digits.find_first_not_of("0123456789") != std::string::npos) {
    refuse(text);
  }
  return std::stoll(digits);
}

void parse_fault(const std::string& text, Settings& settings) {
  static const std::map<std::string, FaultKind> kinds = {
      {"init_hang", FaultKind::init_hang},       {"init_error", FaultKind::init_error},
      {"async_error", FaultKind::async_error},   {"hang", FaultKind::hang},
      {"split_hang", FaultKind::split_hang},     {"split_error", FaultKind::split_error},
      {"call_hang", FaultKind::call_hang},       {"abort_hang", FaultKind::abort_hang},
      {"device_error", FaultKind::device_error}, {"query_hang", FaultKind::query_hang},
      {"version", FaultKind::version},           {"old_version", FaultKind::old_version},
      {"old_runtime", FaultKind::old_runtime},
  };
  std::string rest = text;
  if (size_t at = rest.find('@'); at != std::string::npos) {
    settings.member = static_cast<int>(number(rest.substr(at + 1), text));
    rest.resize(at);
  }
  size_t colon = rest.find(':');
  auto kind = kinds.find(rest.substr(0, colon));
  if (kind == kinds.end()) refuse(text);
  bool counted = kind->second == FaultKind::async_error || kind->second == FaultKind::hang ||
                 kind->second == FaultKind::call_hang || kind->second == FaultKind::device_error ||
                 kind->second == FaultKind::query_hang || kind->second == FaultKind::version;
  if (counted != (colon != std::string::npos)) refuse(text);
  if (counted) settings.after = number(rest.substr(colon + 1), text);
  settings.fault = kind->second;
}

struct Read {
  Settings settings;
  std::string unusable;

  Read() {
    try {
      settings.devices = static_cast<int>(setting("HETCOMM_EMULATED_DEVICES", 8, 0, kMostDevices));
      settings.copy_rate = setting("HETCOMM_EMULATED_COPY_RATE", 0, 0, kFastest);
      settings.latency_us = setting("HETCOMM_EMULATED_LATENCY", 0, 0, 60'000'000);
      settings.direct = setting("HETCOMM_EMULATED_DIRECT", 0, 0, 1) != 0;
      settings.counts = setting("HETCOMM_EMULATED_CALLS", 0, 0, 1) != 0;
      settings.networks = setting("HETCOMM_EMULATED_NETWORKS", "Socket");
      if (auto text = setting("HETCOMM_EMULATED_HOSTILE")) settings.hostile = parse_hostile(*text);
      if (auto text = setting("HETCOMM_EMULATED_FAULT")) parse_fault(*text, settings);
    } catch (const Error& error) {
      unusable = error.what();
    }
  }
};

const Read& environment() {
  static const Read* read = new Read;  // kept, as threads may outlive static objects
  return *read;
}

}  // namespace

const Settings& settings() { return environment().settings; }
const std::string& unusable() { return environment().unusable; }

}  // namespace hetcomm::emulated
