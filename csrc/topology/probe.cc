#include "topology/probe.h"

#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "base/config.h"
#include "base/status.h"
#include "base/system_text.h"
#include "topology/machine.h"
#include "topology/sysfs.h"

namespace hetcomm {
namespace {

constexpr const char* kBootId = "/proc/sys/kernel/random/boot_id";

struct stat facts_of(const char* path) {
  struct stat facts;
  if (stat(path, &facts) != 0) {
    throw Error(Code::invalid_argument,
                system_text("cannot tell which host this is: ", path, ": ", kReason,
                            "; make it readable, or set HETCOMM_HOST_ID to a name that only ranks "
                            "sharing this machine's memory have"));
  }
  return facts;
}

// The processors that this thread may run on. The mask grows until it has room for all of them.
std::vector<int> allowed_processors() {
  std::vector<int> found;
  for (int count = 1024; count <= 1 << 20 && found.empty(); count *= 2) {
    cpu_set_t* set = CPU_ALLOC(count);
    const size_t bytes = CPU_ALLOC_SIZE(count);
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    for (int processor = 0; known && processor < count; ++processor) {
      if (CPU_ISSET_S(processor, bytes, set)) found.push_back(processor);
    }
    CPU_FREE(set);
  }
  return found;
}

}  // namespace

std::string host_identity() {
  if (auto identity = setting("HETCOMM_HOST_ID")) return *identity;
  facts_of(kBootId);
  return read_attribute(kBootId) + "/" + host_name() +
         "/net:" + std::to_string(facts_of("/proc/self/ns/net").st_ino) +
         "/shm:" + std::to_string(facts_of("/dev/shm").st_dev);
}

RankInfo probe_rank() {
  NicChoice choice = choose_nics(Machine::current());
  RankInfo info;
  info.host = host_identity();
  info.host_name = host_name();
  info.machine = read_attribute(kBootId);
  info.vendor = setting("HETCOMM_VENDOR", std::string("cpu"));
  info.processors = allowed_processors();
  info.cores = std::max(1, static_cast<int>(info.processors.size()));
  info.island = setting("HETCOMM_ISLAND", "");
  info.zone = setting("HETCOMM_ZONE", "");
  info.nics = choice.taken;
  info.warnings = choice.warnings;
  return info;
}

}  // namespace hetcomm
