#include "base/available_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace hetcomm {
namespace {

constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();

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
  std::string line;
  std::getline(file, line);
  int64_t found = 0;
  const auto read = std::from_chars(line.data(), line.data() + line.size(), found);
  return read.ec == std::errc() ? std::optional(found) : std::nullopt;
}

// A version of control groups.
struct Version {
  const char* root;
  const char* controller;  // between the colons of a line of /proc/self/cgroup, and commas
  const char* limit;
  const char* used;
  std::vector<const char*> dropped;  // in memory.stat
};
const Version kFirst{"/sys/fs/cgroup/memory",
                     ",memory,",
                     "memory.limit_in_bytes",
                     "memory.usage_in_bytes",
                     {"total_active_file", "total_inactive_file"}};
const Version kSecond{"/sys/fs/cgroup",
                      ",,",
                      "memory.max",
                      "memory.current",
                      {"active_file", "inactive_file", "slab_reclaimable"}};

// The cache of files counts as free, because the system drops it on demand.
int64_t available_in(const Version& version, const std::string& group) {
  const std::string folder = version.root + group + "/";
  const auto limit = number(folder + version.limit), used = number(folder + version.used);
  if (!limit || !used) return kUnbounded;
  int64_t dropped = 0;
  for (const char* name : version.dropped) {
    dropped += entry(folder + "memory.stat", name).value_or(0);
  }
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, *used - dropped));
}

// The process's group: of the line "0::/path" in the second version, of "4:memory:/path" in the
// first one. "" if there is none.
std::string own_group(const Version& version) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool own = controllers.find(version.controller) != std::string::npos;
    if (own && line.compare(second + 1, 1, "/") == 0) return line.substr(second + 1);
  }
  return "";
}

// In the group, in the groups above, and in the root, which may be that of a container.
int64_t available_by(const Version& version) {
  int64_t most = available_in(version, "");
  for (std::string group = own_group(version); !group.empty(); group.resize(group.rfind('/'))) {
    most = std::min(most, available_in(version, group));
  }
  return most;
}

}  // namespace

int64_t available_memory() {
  int64_t most = kUnbounded;
  if (const auto kib = entry("/proc/meminfo", "MemAvailable:")) most = *kib * 1024;
  return std::min({most, available_by(kFirst), available_by(kSecond)});
}

}  // namespace hetcomm
