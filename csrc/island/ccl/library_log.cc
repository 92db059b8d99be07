#include "island/ccl/library_log.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <sstream>

#include "base/config.h"
#include "base/descriptor.h"
#include "base/text.h"

namespace hetcomm {
namespace {

constexpr off_t kMostRead = 16 << 20;
constexpr const char* kVariables[] = {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"};

// The text after the last `mark`, up to `end` or the end of the line, without spaces around it.
std::string after_last(const std::string& text, const std::string& mark, const char* end) {
  const size_t at = text.rfind(mark);
  if (at == std::string::npos) return "";
  std::string rest = text.substr(at + mark.size());
  rest.resize(std::min({rest.find('\n'), rest.find(end), rest.size()}));
  const size_t first = rest.find_first_not_of(' ');
  return first == std::string::npos ? ""
                                    : rest.substr(first, rest.find_last_not_of(' ') + 1 - first);
}

// Whether "[0]mlx5_1:1/RoCE [1]mlx5_2:1/RoCE" has a device, which may be part of "mlx5_1+mlx5_2".
bool lists(const std::string& devices, const std::string& device) {
  for (size_t at = 0; (at = devices.find(device, at)) != std::string::npos; ++at) {
    const char before = at == 0 ? ' ' : devices[at - 1];
    const char after = at + device.size() < devices.size() ? devices[at + device.size()] : ' ';
    const auto of_name = [](char c) { return is_letter_or_digit(c) || c == '_'; };
    if (!of_name(before) && !of_name(after)) return true;
  }
  return false;
}

// The log of the process. A library that has begun to write here writes here to the end.
struct Memory {
  std::mutex mutex;  // also over the environment
  Descriptor descriptor;
  int listeners = 0;
  bool ours = false;   // hetcomm has set the environment
  bool wrote = false;  // the library
  std::string network;
  std::map<std::string, std::string> devices;  // by network

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor); }
  bool ready() {
    if (descriptor < 0) descriptor = make_memory_descriptor("hetcomm-ccl-log", MFD_CLOEXEC);
    return descriptor >= 0 && access(path().c_str(), W_OK) == 0;
  }

  // Reads the new text and frees its memory; the library writes on behind the hole.
  void read() {
    struct stat state{};
    if (descriptor < 0 || fstat(descriptor, &state) != 0) return;
    const off_t begin = std::max<off_t>(0, state.st_size - kMostRead);
    std::string text(static_cast<size_t>(state.st_size - begin), '\0');
    const ssize_t got = pread(descriptor, text.data(), text.size(), begin);
    wrote |= got > 0;
    if (got <= 0 || ftruncate(descriptor, 0) != 0) return;
    text.resize(static_cast<size_t>(got));
    for (const char* name : {"IB", "Socket"}) {
      const std::string found = after_last(text, std::string("NET/") + name + " : Using", "; OOB");
      if (!found.empty()) devices[name] = found;
    }
    const std::string taken = after_last(text, "Using network ", "\n");
    if (!taken.empty()) network = taken;
  }
};

Memory& memory() {
  static auto* memory = new Memory;
  return *memory;
}

}  // namespace

std::string LibraryLog::Network::lacks(const std::string& wanted,
                                       const std::string& wanted_devices) const {
  if (!wanted.empty() && !name.empty() && wanted != name) return wanted;
  std::string missing;
  std::istringstream list(wanted_devices.substr(wanted_devices.starts_with('=') ? 1 : 0));
  for (std::string device; name == "IB" && std::getline(list, device, ',');) {
    if (!lists(devices, device)) missing += (missing.empty() ? "" : ", ") + device;
  }
  return missing;
}

LibraryLog::LibraryLog() {
  std::lock_guard lock(memory().mutex);
  if (memory().listeners++ > 0) return;
  const bool wanted =
      std::any_of(std::begin(kVariables), std::end(kVariables),
                  [](const char* name) { return environment_variable(name).has_value(); });
  memory().ours = !wanted && memory().ready();
  if (!memory().ours) return;
  set_environment_variable("NCCL_DEBUG_FILE", memory().path());
  set_environment_variable("NCCL_DEBUG_SUBSYS", "INIT,NET");
  set_environment_variable("NCCL_DEBUG", "INFO");
}

LibraryLog::~LibraryLog() {
  std::lock_guard lock(memory().mutex);
  if (--memory().listeners > 0 || !memory().ours) return;
  // Child processes do not inherit the variables.
  for (const char* name : kVariables) set_environment_variable(name, std::nullopt);
}

bool LibraryLog::silent() {
  std::lock_guard lock(memory().mutex);
  memory().read();
  return memory().ours && !memory().wrote;
}

LibraryLog::Network LibraryLog::network() {
  std::lock_guard lock(memory().mutex);
  memory().read();
  const auto found = memory().devices.find(memory().network);
  return {memory().network, found == memory().devices.end() ? "" : found->second};
}

}  // namespace hetcomm
