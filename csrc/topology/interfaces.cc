#include <fstream>
#include <set>

#include "topology/candidate.h"
#include "topology/ip.h"
#include "topology/sysfs.h"

namespace hetcomm {
namespace {

// Hardware types of linux/if_arp.h.
constexpr int type_ethernet = 1, type_infiniband = 32, type_loopback = 772;

// Names of interfaces made by software, where sysfs does not tell their kind.
struct NamePattern {
  const char* prefix;
  Standing standing;
  const char* reason;
};
constexpr NamePattern name_patterns[] = {
    {"ifb", Standing::on_request, "a device for traffic shaping"},
    {"dummy", Standing::on_request, "a dummy device"},
    {"docker", Standing::local, "a container bridge"},
    {"cni", Standing::local, "a container bridge"},
    {"podman", Standing::local, "a container bridge"},
    {"lxcbr", Standing::local, "a container bridge"},
    {"lxdbr", Standing::local, "a container bridge"},
    {"virbr", Standing::local, "a bridge for virtual machines"},
    {"vnet", Standing::local, "a virtual machine's end of a link"},
    {"veth", Standing::local, "a container's end of a link"},
    {"cali", Standing::local, "a container's end of a link"},
    {"flannel", Standing::local, "an overlay network"},
    {"vxlan", Standing::local, "an overlay network"},
    {"tun", Standing::local, "a tunnel"},
    {"tap", Standing::local, "a tunnel"},
    {"wg", Standing::local, "a tunnel"},
    {"tailscale", Standing::local, "a tunnel"},
};

// "br-0123456789ab". Other bridges, such as OpenShift's br-ex, may be a host's way to the network.
bool is_bridge_of_docker(const std::string& name) {
  return name.size() == 15 && name.starts_with("br-") &&
         name.find_first_not_of("0123456789abcdef", 3) == std::string::npos;
}

// The type in udev's words: "wlan", "bridge", "bond", "vxlan", "wireguard", often nothing.
std::string device_type(const std::string& folder) {
  std::ifstream file(folder + "/uevent");
  const std::string key = "DEVTYPE=";
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key, 0) == 0) return line.substr(key.size());
  }
  return "";
}

bool is_up(const std::string& folder) {
  std::string state = read_attribute(folder + "/operstate");
  if (state != "unknown" && !state.empty()) return state == "up";
  // Drivers without link detection say "unknown". The administrator's setting then decides.
  constexpr int flag_up = 0x1;
  return (static_cast<int>(read_number(folder + "/flags", flag_up)) & flag_up) != 0;
}

// The usable port of the interface, empty without one.
std::string port_of(const std::string& interface, const std::vector<Candidate>& ports) {
  for (const Candidate& port : ports) {
    if (port.standing != Standing::unusable && port.nic.interface == interface) {
      return port.nic.name;
    }
  }
  return "";
}

void judge(Candidate& candidate, const std::string& folder, const std::vector<Candidate>& ports) {
  auto set = [&candidate](Standing standing, const std::string& reason) {
    candidate.standing = standing;
    candidate.reason = reason;
  };
  const Nic& nic = candidate.nic;
  int type = static_cast<int>(read_number(folder + "/type", type_ethernet));
  if (type == type_loopback || nic.name == "lo") {
    return set(Standing::loopback, "the loopback reaches this host only");
  }
  if (!is_up(folder)) return set(Standing::unusable, "it is down");
  std::string port = port_of(nic.name, ports);
  if (!port.empty()) return set(Standing::unusable, "it is reached through " + port);
  if (nic.address.empty()) {
    std::string master = link_name(folder + "/master");
    if (!master.empty()) return set(Standing::unusable, "it is a member of " + master);
    return set(Standing::unusable, "it has no IP address");
  }
  for (const NamePattern& pattern : name_patterns) {
    if (nic.name.rfind(pattern.prefix, 0) == 0) return set(pattern.standing, pattern.reason);
  }
  if (is_bridge_of_docker(nic.name)) return set(Standing::local, "a container bridge");
  std::string kind = device_type(folder);
  if (kind == "wireguard" || exists(folder + "/tun_flags") ||
      (type != type_ethernet && type != type_infiniband)) {
    return set(Standing::local, "a tunnel");
  }
  if (kind == "vxlan") return set(Standing::local, "an overlay network");
  if (nic.address.rfind("169.254.", 0) == 0) {
    return set(Standing::local, "it has a link-local address only");
  }
}

// The ports below a VLAN, bond or bridge; any other interface is its own port.
std::set<std::string> ports_below(const std::string& root, const std::string& name) {
  const std::string prefix = "lower_";
  std::set<std::string> found, seen;
  std::vector<std::string> pending = {name};
  while (!pending.empty()) {
    const std::string next = pending.back();
    pending.pop_back();
    if (!seen.insert(next).second) continue;
    const size_t before = pending.size();
    for (const std::string& entry : list_directory(root + "/" + next)) {
      if (entry.starts_with(prefix)) pending.push_back(entry.substr(prefix.size()));
    }
    if (pending.size() == before) found.insert(next);
  }
  return found;
}

// Interfaces on one port share the rate of the port, although each reports the whole rate.
void mark_shared_rates(const std::string& root, std::vector<Candidate>& candidates) {
  std::set<std::string> taken;
  for (Candidate& candidate : candidates) {
    if (candidate.standing != Standing::network) continue;
    for (const std::string& port : ports_below(root, candidate.nic.name)) {
      if (!taken.insert(port).second) candidate.nic.bandwidth_known = false;
    }
  }
}

}  // namespace

std::string address_of(const Machine& machine, const std::string& interface) {
  return ip_address(address_entry(machine, interface));
}

std::string address_entry(const Machine& machine, const std::string& interface) {
  auto found = machine.addresses.find(interface);
  return found == machine.addresses.end() ? "" : found->second;
}

void set_bandwidth(Nic& nic, double bits_per_second, int64_t assumed) {
  // Drivers write an unknown rate as -1, or as 2^32 - 1 Mbit/s.
  nic.bandwidth_known = bits_per_second > 0 && bits_per_second < 1e15;
  nic.bandwidth = nic.bandwidth_known ? static_cast<int64_t>(bits_per_second / 8) : assumed;
}

std::vector<Candidate> find_interfaces(const Machine& machine,
                                       const std::vector<Candidate>& ports) {
  const std::string root = machine.sysfs + "/class/net";
  std::vector<std::string> names = list_directory(root);
  std::erase(names, "bonding_masters");  // a file of the bonding driver, not an interface
  for (const auto& [name, address] : machine.addresses) {
    if (!exists(root + "/" + name)) names.push_back(name);
  }
  std::vector<Candidate> found;
  for (const std::string& name : names) {
    const std::string folder = root + "/" + name;
    Candidate candidate;
    candidate.nic.name = candidate.nic.interface = name;
    bool is_wireless = device_type(folder) == "wlan" || exists(folder + "/wireless");
    set_bandwidth(candidate.nic, read_number(folder + "/speed", -1) * 1e6,
                  is_wireless ? assumed_wireless_bandwidth : assumed_bandwidth);
    candidate.nic.numa = static_cast<int>(read_number(folder + "/device/numa_node", -1));
    candidate.nic.address = address_of(machine, name);
    candidate.nic.subnet = ip_network(address_entry(machine, name));
    judge(candidate, folder, ports);
    found.push_back(candidate);
  }
  mark_shared_rates(root, found);
  return found;
}

}  // namespace hetcomm
