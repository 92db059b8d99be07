#include "topology/machine.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <bit>
#include <charconv>
#include <fstream>
#include <memory>
#include <sstream>

#include "base/config.h"
#include "base/status.h"
#include "base/system_text.h"
#include "base/text.h"
#include "topology/sysfs.h"

namespace hetcomm {
namespace {

int count_bits(const unsigned char* bytes, size_t size) {
  int count = 0;
  for (size_t i = 0; i < size; ++i) count += std::popcount(bytes[i]);
  return count;
}

// An address with its prefix length. Empty if other hosts cannot use the address.
std::string address_text(const sockaddr* address, const sockaddr* mask) {
  int prefix = -1;
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
    if (mask != nullptr) {
      const in_addr& bits = reinterpret_cast<const sockaddr_in*>(mask)->sin_addr;
      prefix = count_bits(reinterpret_cast<const unsigned char*>(&bits), sizeof bits);
    }
  } else if (address->sa_family == AF_INET6) {
    const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (!IN6_IS_ADDR_LINKLOCAL(&v6) && !IN6_IS_ADDR_MULTICAST(&v6)) {
      inet_ntop(AF_INET6, &v6, text, sizeof text);
    }
    if (mask != nullptr) {
      const in6_addr& bits = reinterpret_cast<const sockaddr_in6*>(mask)->sin6_addr;
      prefix = count_bits(bits.s6_addr, sizeof bits);
    }
  }
  if (text[0] == '\0' || prefix < 0) return text;
  return std::string(text) + "/" + std::to_string(prefix);
}

std::map<std::string, std::string> read_addresses() {
  ifaddrs* head = nullptr;
  if (getifaddrs(&head) != 0) {
    throw Error(Code::transport,
                system_text("cannot list this machine's network addresses: ", kReason,
                            "; check that the process may open netlink sockets"));
  }
  std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(head, freeifaddrs);
  std::map<std::string, std::string> addresses;
  for (int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = head; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family) continue;
      // An alias such as eth0:1 is an address of eth0.
      std::string name(entry->ifa_name, std::strcspn(entry->ifa_name, ":"));
      std::string text = address_text(entry->ifa_addr, entry->ifa_netmask);
      if (!text.empty()) addresses.emplace(name, text);
    }
  }
  return addresses;
}

constexpr unsigned route_up = 0x1, route_rejects = 0x200;  // flags of linux/route.h

unsigned flags_of(const std::string& hexadecimal) {
  unsigned flags = 0;
  std::from_chars(hexadecimal.data(), hexadecimal.data() + hexadecimal.size(), flags, 16);
  return flags;
}

std::set<std::string> read_default_routes() {
  std::set<std::string> interfaces;
  std::ifstream file("/proc/net/route");
  std::string line;
  std::getline(file, line);  // headings
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string interface, destination, gateway, flags, skipped, mask;
    fields >> interface >> destination >> gateway >> flags >> skipped >> skipped >> skipped >> mask;
    if (destination == "00000000" && mask == "00000000" && (flags_of(flags) & route_up) != 0) {
      interfaces.insert(interface);
    }
  }
  return interfaces;
}

// Of interfaces whose address is an IPv6 one.
std::set<std::string> read_ipv6_default_routes(
    const std::map<std::string, std::string>& addresses) {
  std::set<std::string> interfaces;
  std::ifstream file("/proc/net/ipv6_route");
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string destination, prefix, skipped, flags, interface;
    fields >> destination >> prefix >> skipped >> skipped >> skipped >> skipped >> skipped >>
        skipped >> flags >> interface;
    const bool usable = (flags_of(flags) & (route_up | route_rejects)) == route_up;
    const auto address = addresses.find(interface);
    const bool chosen =
        address != addresses.end() && address->second.find(':') != std::string::npos;
    if (prefix == "00" && usable && chosen) interfaces.insert(interface);
  }
  return interfaces;
}

// The file "addresses" of a recorded tree.
void read_recorded_addresses(const std::string& path, Machine& machine) {
  machine.addresses.clear();
  machine.default_routes.clear();
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string interface, address, route;
    fields >> interface >> address >> route;
    if (interface.empty()) continue;
    machine.addresses[interface] = address;
    if (route == "default") machine.default_routes.insert(interface);
  }
}

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    size_t first = part.find_first_not_of(" \t"), last = part.find_last_not_of(" \t");
    if (first != std::string::npos) parts.push_back(part.substr(first, last - first + 1));
  }
  return parts;
}

}  // namespace

Machine Machine::current() {
  Machine machine;
  machine.addresses = read_addresses();
  machine.default_routes = read_default_routes();
  machine.default_routes.merge(read_ipv6_default_routes(machine.addresses));
  machine.requested = split_list(setting("HETCOMM_SOCKET_IFNAME", ""));
  if (auto root = setting("HETCOMM_SYSFS_ROOT")) {
    machine.sysfs = *root;
    if (!exists(machine.sysfs + "/class/net")) {
      throw Error(Code::invalid_argument,
                  "HETCOMM_SYSFS_ROOT: expected a directory that holds class/net; got \"" + *root +
                      "\"; correct or unset the variable");
    }
    const std::string recorded = machine.sysfs + "/addresses";
    if (exists(recorded)) read_recorded_addresses(recorded, machine);
    // The tree says which interfaces exist. Other interfaces of this machine do not count.
    std::erase_if(machine.addresses, [&](const auto& entry) {
      return !exists(machine.sysfs + "/class/net/" + entry.first);
    });
  } else {
    machine.verbs = "/dev/infiniband";
  }
  return machine;
}

}  // namespace hetcomm
