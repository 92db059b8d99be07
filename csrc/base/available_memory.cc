#include "base/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace hetcomm {
namespace {

constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();
const std::string kGroups = "/sys/fs/cgroup";

// The number after a name in a file of names and numbers.
std::optional<int64_t> entry(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, name.size() + 1, name + " ") == 0)
      return std::stoll(line.substr(name.size()));
  }
  return std::nullopt;
}

// Nothing for a file without a number, such as "max".
std::optional<int64_t> number(const std::string& path) {
  std::ifstream file(path);
  int64_t found;
  return file >> found ? std::optional(found) : std::nullopt;
}

// The cache of files counts as free, because the system drops it on demand.
int64_t available_in(const std::string& group) {
  const auto limit = number(group + "/memory.max"), used = number(group + "/memory.current");
  if (!limit || !used) return kUnbounded;
  int64_t dropped = 0;
  for (const char* name : {"active_file", "inactive_file", "slab_reclaimable"}) {
    dropped += entry(group + "/memory.stat", name).value_or(0);
  }
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, *used - dropped));
}

// The process's group in the second version of control groups; "/" if there is none.
std::string own_group() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, 4, "0::/") == 0) return line.substr(3);
  }
  return "/";
}

}  // namespace

int64_t available_memory() {
  int64_t most = kUnbounded;
  if (const auto kib = entry("/proc/meminfo", "MemAvailable:")) most = *kib * 1024;
  for (std::string group = own_group(); !group.empty(); group.resize(group.rfind('/'))) {
    most = std::min(most, available_in(kGroups + group));
  }
  return std::min(most, available_in(kGroups));
}

}  // namespace hetcomm
