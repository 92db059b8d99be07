#include "transport/ucx/settings.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "base/config.h"
#include "base/joined.h"
#include "base/log.h"
#include "base/status.h"
#include "base/system_text.h"
#include "transport/ucx/free_ports.h"

namespace hetcomm {
namespace {

namespace fs = std::filesystem;

struct Setting {
  const char* key;
  const char* value;
  bool over_environment = false;
};

// UCX leaves POSIX memory out where less than 16 MiB are left. A transport takes 4.1 MiB.
constexpr uint64_t kLeastSpace = 24 << 20;

constexpr Setting kSettings[] = {
    // Without these two, endpoints that must survive the peer's death refuse shared memory. They
    // still refuse CMA: nothing can cancel a copy straight out of the peer's memory.
    {"POSIX_ERROR_HANDLING", "y"},
    {"SYSV_ERROR_HANDLING", "y"},
    // Where shared memory ends, UCX 1.22 otherwise takes other memory for it, and crashes.
    {"POSIX_ALLOC", "md"},
    {"SYSV_ALLOC", "md"},
    // hetcomm watches its peers itself. UCX 1.22 can crash when it probes a closing endpoint.
    {"KEEPALIVE_INTERVAL", "inf"},
    // Otherwise connect() blocks the executor, and so the watch over peers, until the kernel gives
    // up: 42 s for the first message to a host whose link was down, 2 s with this setting.
    {"TCP_CONN_NB", "y"},
};

// On TCP a rendezvous' replies queue behind the other direction's data. Both directions at once
// over 1 Gbit/s, messages of 1 to 32 MiB, two busy cores: 60 MB/s each way, without it 107 to 112;
// raw sockets 119. With idle cores 118 to 121 either way, and for 8 bytes 9 us (raw sockets 24 us).
// Segment sizes, socket buffers and poll counts made no difference beyond the noise. So messages
// over TCP are eager: UCX believes that a rendezvous begins with 1000 s. Only a message with the
// flag for fast completion is a rendezvous, from 4 KB on. An endpoint sets the flag if the peer
// does not take its messages. UCX obeys the flag only if RNDV_THRESH is auto. Over shared memory
// auto would be 566 KiB without the first setting.
constexpr Setting kTcpOnly[] = {
    {"PROTO_OVERHEAD",
     "single:5ns,multi:10ns,rndv_offload:40ns,rndv_rtr:40ns,rndv_rts:1000s,sw:40ns,rkey_ptr:0"},
    {"RNDV_THRESH", "intra:512k,inter:auto"},
    {"RNDV_SEND_NBR_THRESH", "4k"},
};
// Versions that do not know all of these settings are always eager. Versions before 1.14 have one
// threshold, and no shared memory for such endpoints that the threshold could harm.
constexpr Setting kOlderTcpOnly[] = {
    {"RNDV_THRESH", "inf"},
    {"RNDV_THRESH", "intra:auto,inter:inf"},
};

std::vector<std::string> entries(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The internet addresses of interfaces that are up.
void for_each_address(const std::function<void(const ifaddrs&)>& call) {
  ifaddrs* addresses = nullptr;
  if (getifaddrs(&addresses) != 0) return;
  for (ifaddrs* address = addresses; address; address = address->ifa_next) {
    if (address->ifa_addr == nullptr || !(address->ifa_flags & IFF_UP)) continue;
    const int family = address->ifa_addr->sa_family;
    if (family == AF_INET || family == AF_INET6) call(*address);
  }
  freeifaddrs(addresses);
}

std::vector<std::string> running_interfaces() {
  std::vector<std::string> names;
  for_each_address([&](const ifaddrs& address) {
    if (std::find(names.begin(), names.end(), address.ifa_name) == names.end()) {
      names.push_back(address.ifa_name);
    }
  });
  return names;
}

// False for loopback and for bridges with the same address on every host.
bool leads_out(const std::string& interface) {
  for (const char* prefix : {"docker", "br-", "virbr"}) {
    if (interface.rfind(prefix, 0) == 0) return false;
  }
  return interface != "lo";
}

std::vector<std::string> all_interfaces(const UcxLibrary& ucx) {
  std::vector<std::string> chosen = ucx.drives_rdma ? rdma_devices() : std::vector<std::string>();
  std::vector<std::string> running = running_interfaces();
  std::copy_if(running.begin(), running.end(), std::back_inserter(chosen), leads_out);
  return chosen.empty() ? std::vector<std::string>{"lo"} : chosen;
}

// UCX's NET_DEVICES for these interfaces. Throws Error(invalid_argument).
std::vector<std::string> net_devices(const std::vector<std::string>& interfaces,
                                     const UcxLibrary& ucx) {
  std::vector<std::string> devices;
  for (const std::string& name : interfaces.empty() ? all_interfaces(ucx) : interfaces) {
    std::string device = name.substr(0, name.find(':'));
    fs::path rdma = fs::path("/sys/class/infiniband") / device;
    std::error_code ignored;
    if (!device.empty() && fs::exists(rdma, ignored)) {
      if (!ucx.drives_rdma) {
        std::vector<std::string> fallback = entries(rdma / "device" / "net");
        log(LogLevel::warning, "UCX from " + ucx.path + " cannot drive RDMA: " + name +
                                   " is used " +
                                   (fallback.empty() ? std::string("not at all")
                                                     : "through TCP over " + joined(fallback)) +
                                   "; set HETCOMM_UCX_LIBRARY to a libucp.so.0 built with verbs");
        devices.insert(devices.end(), fallback.begin(), fallback.end());
      } else if (device != name) {
        devices.push_back(name);
      } else {
        for (const std::string& port : entries(rdma / "ports"))
          devices.push_back(name + ":" + port);
      }
    } else if (if_nametoindex(name.c_str()) != 0) {
      devices.push_back(name);
    } else {
      throw Error(Code::invalid_argument,
                  "network interface: expected one of " + joined(running_interfaces()) +
                      (rdma_devices().empty() ? "" : ", " + joined(rdma_devices())) + "; got \"" +
                      name + "\"; correct the list of interfaces");
    }
  }
  if (devices.empty()) {
    throw Error(Code::invalid_argument, "network interfaces: expected one that UCX from " +
                                            ucx.path + " can use; got " + joined(interfaces) +
                                            "; name another");
  }
  return devices;
}

// Whether UCX takes any free port of hetcomm's interfaces: the user has chosen neither a range of
// ports, nor other interfaces, nor transports without TCP.
bool binds_any_port(Carriers carriers) {
  if (environment_variable("UCX_TCP_PORT_RANGE")) return false;
  if (carriers == Carriers::tcp) return true;
  if (carriers == Carriers::all_but_tcp && !environment_variable("UCX_TLS")) return false;
  const std::string transports = environment_variable("UCX_TLS").value_or("all");
  const bool tcp = transports.starts_with("^") || transports.find("tcp") != std::string::npos ||
                   transports.find("all") != std::string::npos;
  return tcp && !environment_variable("UCX_NET_DEVICES");
}

// UCX's TLS. Empty for all transports.
std::string permitted_transports(Carriers carriers, const SharedMemory& memory) {
  std::vector<std::string> left_out = memory.refused;
  if (carriers == Carriers::all_but_tcp) left_out.push_back("tcp");
  return left_out.empty() ? "" : "^" + joined(left_out, ",");
}

// Such as "ipc:[4026531839]".
std::string name_space(const char* kind) {
  std::error_code ignored;
  return fs::read_symlink(std::string("/proc/self/ns/") + kind, ignored).string();
}

}  // namespace

LoadEnvironment::LoadEnvironment() {
  std::vector<Setting> wanted = {{"UCX_HANDLE_ERRORS", "none"}, {"UCX_WARN_UNUSED_ENV_VARS", "n"}};
  if (!log_enabled(LogLevel::debug)) wanted.push_back({"UCX_LOG_LEVEL", "fatal"});
  // Hooks on the program's memory calls serve the cache of RDMA registrations only.
  if (rdma_devices().empty()) wanted.push_back({"UCX_MEM_EVENTS", "n"});
  for (const Setting& setting : wanted) {
    if (environment_variable(setting.key)) continue;
    set_environment_variable(setting.key, setting.value);
    set_.push_back(setting.key);
  }
}

LoadEnvironment::~LoadEnvironment() {
  for (const char* key : set_) set_environment_variable(key, std::nullopt);
}

std::string address_text(const sockaddr& address) {
  char text[INET6_ADDRSTRLEN] = "";
  const void* from = &reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  if (address.sa_family == AF_INET6) {
    from = &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  }
  inet_ntop(address.sa_family, from, text, sizeof text);
  return text;
}

std::vector<std::string> outward_addresses() {
  std::vector<std::string> found;
  for_each_address([&](const ifaddrs& one) {
    if (leads_out(one.ifa_name)) found.push_back(address_text(*one.ifa_addr));
  });
  return found;
}

SharedMemory SharedMemory::probe() {
  SharedMemory memory{{"posix", "sysv"}, {}};
  const std::string folder = environment_variable("UCX_POSIX_DIR").value_or("/dev/shm");
  struct statvfs space{};
  if (access(folder.c_str(), W_OK | X_OK) != 0 || statvfs(folder.c_str(), &space) != 0) {
    memory.refuse("posix", system_text(folder, " cannot be written: ", kReason));
  } else if (const uint64_t left = uint64_t{space.f_bavail} * space.f_frsize; left < kLeastSpace) {
    memory.refuse("posix", folder + " has " + std::to_string(left >> 10) + " KiB left, UCX needs " +
                               std::to_string(kLeastSpace >> 20) + " MiB");
  }
  const int segment = shmget(IPC_PRIVATE, 1, IPC_CREAT | 0600);
  if (segment < 0) {
    memory.refuse("sysv", system_text("the system refuses shmget(): ", kReason));
  } else {
    shmctl(segment, IPC_RMID, nullptr);
  }
  return memory;
}

void SharedMemory::refuse(const std::string& kind, const std::string& why) {
  std::erase(works, kind);
  refused.push_back(kind);
  reasons += "; " + why;
  log(works.empty() ? LogLevel::warning : LogLevel::info,
      "UCX does without the shared memory " + joined(refused) +
          (works.empty() ? ", so messages inside the host are slower" : "") + reasons);
}

std::vector<std::string> SharedMemory::kinds() const {
  if (const auto chosen = environment_variable("UCX_TLS")) return {"UCX_TLS=" + *chosen};
  std::vector<std::string> kinds = works;
  for (std::string& kind : kinds) {
    // UCX opens POSIX segments by the number of the other process.
    if (kind == "posix") kind += " " + name_space("pid");
    kind += " " + name_space("ipc");
  }
  return kinds;
}

std::vector<std::string> rdma_devices() { return entries("/sys/class/infiniband"); }

ucp_config_t* read_configuration(const std::vector<std::string>& interfaces, Carriers carriers,
                                 const SharedMemory& memory, const UcxLibrary& ucx,
                                 bool& chooses_protocol) {
  const std::vector<std::string> wanted_devices = net_devices(interfaces, ucx);
  if (binds_any_port(carriers)) require_free_ports(wanted_devices);
  const std::string devices = joined(wanted_devices, ",");
  ucp_config_t* configuration = nullptr;
  ucs_status_t status = ucx.ucp_config_read(nullptr, nullptr, &configuration);
  if (status != UCS_OK) {
    throw Error(Code::vendor,
                std::string("UCX configuration: expected valid UCX_* variables; got ") +
                    ucx.ucs_status_string(status) + "; correct or unset them");
  }
  const auto take = [&](const Setting& setting) {
    return ucx.ucp_config_modify(configuration, setting.key, setting.value) == UCS_OK;
  };
  // Only RDMA devices have a port: "mlx5_0:1".
  const bool tcp = devices.find(':') == std::string::npos;
  const bool free = tcp && !environment_variable("UCX_RNDV_THRESH");
  chooses_protocol = free && !environment_variable("UCX_PROTO_OVERHEAD") &&
                     !environment_variable("UCX_RNDV_SEND_NBR_THRESH") &&
                     std::all_of(std::begin(kTcpOnly), std::end(kTcpOnly), take);
  if (free && !chooses_protocol)
    std::for_each(std::begin(kOlderTcpOnly), std::end(kOlderTcpOnly), take);
  std::vector<Setting> wanted(std::begin(kSettings), std::end(kSettings));
  const bool only_tcp = carriers == Carriers::tcp;
  std::string permitted = "tcp";
  if (!only_tcp && !environment_variable("UCX_TLS")) {
    permitted = permitted_transports(carriers, memory);
  }
  wanted.push_back({"NET_DEVICES", devices.c_str(), only_tcp});
  if (!permitted.empty()) wanted.push_back({"TLS", permitted.c_str(), only_tcp});
  for (const Setting& setting : wanted) {
    const auto is_set = environment_variable((std::string("UCX_") + setting.key).c_str());
    if (is_set && !setting.over_environment) continue;
    status = ucx.ucp_config_modify(configuration, setting.key, setting.value);
    if (status != UCS_OK) {  // older versions lack some settings
      log(LogLevel::info, std::string("UCX ") + ucx.version + " does not take " + setting.key +
                              "=" + setting.value + ": " + ucx.ucs_status_string(status));
    }
  }
  return configuration;
}

}  // namespace hetcomm
