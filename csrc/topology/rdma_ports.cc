#include <unistd.h>

#include <cstdlib>

#include "topology/candidate.h"
#include "topology/ip.h"
#include "topology/sysfs.h"

namespace hetcomm {
namespace {

// The interface with the port's address: an interface of the port, or the bond (or other master)
// of such an interface.
std::string interface_of(const Machine& machine, const std::string& device, int port) {
  const std::string folder = machine.sysfs + "/class/infiniband/" + device;
  std::vector<std::string> names;
  auto add = [&](const std::string& name) {
    std::string path = machine.sysfs + "/class/net/" + name;
    if (name.empty() || !exists(path)) return;
    std::string master = link_name(path + "/master");
    if (address_of(machine, name).empty() && !address_of(machine, master).empty()) {
      names.push_back(master);
    } else {
      names.push_back(name);
    }
  };
  const std::string table = folder + "/ports/" + std::to_string(port) + "/gid_attrs/ndevs";
  for (const std::string& entry : list_directory(table)) add(read_attribute(table + "/" + entry));
  if (names.empty()) {
    for (const std::string& name : list_directory(folder + "/device/net")) {
      std::string path = machine.sysfs + "/class/net/" + name + "/dev_port";
      if (read_number(path, port - 1) == port - 1) add(name);
    }
  }
  for (const std::string& name : names) {
    if (!address_of(machine, name).empty()) return name;
  }
  return names.empty() ? "" : names[0];
}

// The prefix of the port's own GID, "fe80:0000:0000:0000"; empty without a GID.
std::string subnet_prefix(const std::string& port_folder) {
  constexpr size_t length = 4 * 4 + 3;
  std::string gid = read_attribute(port_folder + "/gids/0");
  return gid.size() > length ? gid.substr(0, length) : "";
}

// Finds the RoCE v2 GID that carries the address of the port's interface. Without such a GID the
// candidate gets the reason and the remedy: other GIDs do not reach hosts behind a router.
void choose_gid(const std::string& port_folder, Candidate& port) {
  Nic& nic = port.nic;
  if (nic.address.empty()) {
    port.reason = "its interface " + nic.interface + " has no IP address for a RoCE v2 GID";
    port.remedy = "give " + nic.interface + " an IP address";
    return;
  }
  const std::string wanted = ip_gid(nic.address);
  std::string types;  // of the GIDs that carry the address, but not over RoCE v2
  for (const std::string& index : list_directory(port_folder + "/gids")) {
    if (read_attribute(port_folder + "/gids/" + index) != wanted) continue;
    std::string type = read_attribute(port_folder + "/gid_attrs/types/" + index);
    if (type == "RoCE v2") {
      nic.gid = std::atoi(index.c_str());
      return;
    }
    types += (types.empty() ? "" : ", ") + (type.empty() ? "unknown" : type);
  }
  if (types.empty()) {
    port.reason = "none of its GIDs carries " + nic.address + " of " + nic.interface;
    port.remedy = "assign the address to " + nic.interface + " again, with the RDMA driver loaded";
  } else {
    port.reason = "its GID with " + nic.address + " has type " + types + ", not RoCE v2";
    port.remedy = "switch the port to RoCE v2 in its driver or firmware";
  }
}

// Why this process cannot open the device; empty if it can.
std::string why_closed(const Machine& machine, const std::string& device) {
  if (machine.verbs.empty()) return "";
  const std::string folder = machine.sysfs + "/class/infiniband_verbs";
  for (const std::string& node : list_directory(folder)) {
    if (read_attribute(folder + "/" + node + "/ibdev") != device) continue;
    std::string path = machine.verbs + "/" + node;
    return access(path.c_str(), R_OK | W_OK) == 0
               ? ""
               : "no access to " + path + " (a container needs to be given the device)";
  }
  return "it has no verbs device (is the kernel module ib_uverbs loaded?)";
}

// "4: ACTIVE" -> "ACTIVE"
std::string after_colon(const std::string& text) {
  size_t colon = text.find(": ");
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

std::string why_unusable(const Machine& machine, const std::string& device,
                         const std::string& port_folder, const Nic& nic) {
  std::string layer = read_attribute(port_folder + "/link_layer");
  if (layer != "InfiniBand" && layer != "Ethernet") {
    return "link layer \"" + layer + "\" is neither InfiniBand nor Ethernet";
  }
  std::string node = read_attribute(machine.sysfs + "/class/infiniband/" + device + "/node_type");
  if (!node.empty() && node.rfind("1:", 0) != 0) {
    return "device type \"" + after_colon(node) + "\" is neither InfiniBand nor RoCE";
  }
  std::string state = after_colon(read_attribute(port_folder + "/state"));
  if (state != "ACTIVE") return "its port is in state \"" + state + "\", not ACTIVE";
  if (nic.fabric == Fabric::roce && nic.interface.empty()) {
    return "its network interface is not in this network namespace";
  }
  return why_closed(machine, device);
}

}  // namespace

std::vector<Candidate> find_rdma_ports(const Machine& machine) {
  std::vector<Candidate> found;
  const std::string root = machine.sysfs + "/class/infiniband";
  for (const std::string& device : list_directory(root)) {
    const std::string folder = root + "/" + device;
    for (const std::string& number : list_directory(folder + "/ports")) {
      const std::string port_folder = folder + "/ports/" + number;
      Candidate port;
      port.nic.name = number == "1" ? device : device + ":" + number;
      port.nic.interface = interface_of(machine, device, std::atoi(number.c_str()));
      port.nic.fabric = read_attribute(port_folder + "/link_layer") == "InfiniBand"
                            ? Fabric::infiniband
                            : Fabric::roce;
      set_bandwidth(port.nic, read_number(port_folder + "/rate", 0) * 1e9, assumed_bandwidth);
      port.nic.numa = static_cast<int>(read_number(folder + "/device/numa_node", -1));
      port.nic.address = address_of(machine, port.nic.interface);
      port.nic.subnet = port.nic.fabric == Fabric::infiniband
                            ? subnet_prefix(port_folder)
                            : ip_network(address_entry(machine, port.nic.interface));
      port.reason = why_unusable(machine, device, port_folder, port.nic);
      if (port.reason.empty() && port.nic.fabric == Fabric::roce) choose_gid(port_folder, port);
      if (!port.reason.empty()) port.standing = Standing::unusable;
      found.push_back(port);
    }
  }
  return found;
}

}  // namespace hetcomm
