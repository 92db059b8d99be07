#include <algorithm>
#include <filesystem>
#include <tuple>

#include "base/text.h"
#include "topology/machine.h"
#include "topology/sysfs.h"

namespace hetcomm {
namespace {

// The location of a PCI device: the bridges from the root to the device, and its NUMA node.
struct PciLocation {
  std::vector<std::string> path;
  int numa = -1;
};

// The location of the device behind a link in sysfs; an empty path without a device.
PciLocation locate(const std::string& link) {
  PciLocation location;
  std::error_code error;
  std::filesystem::path target = std::filesystem::canonical(link, error);
  if (error) return location;
  for (const auto& part : target) {
    // The path begins with "pci0000:15" and goes on with "0000:16:00.0".
    bool is_root = part.string().rfind("pci", 0) == 0;
    if (is_root || !location.path.empty()) location.path.push_back(part.string());
  }
  location.numa = static_cast<int>(read_number(link + "/numa_node", -1));
  return location;
}

// Smaller is nearer. Equal NUMA nodes come first, then more bridges in common.
std::tuple<bool, int> distance(const PciLocation& device, const PciLocation& nic) {
  auto differ =
      std::mismatch(device.path.begin(), device.path.end(), nic.path.begin(), nic.path.end());
  return {device.numa != nic.numa, -static_cast<int>(differ.first - device.path.begin())};
}

// The indices of the nearest of `nics`.
std::vector<size_t> nearest(const PciLocation& device, const std::vector<PciLocation>& nics) {
  std::vector<size_t> found;
  for (size_t i = 0; i < nics.size(); ++i) {
    if (!found.empty() && distance(device, nics[i]) < distance(device, nics[found[0]])) {
      found.clear();
    }
    if (found.empty() || distance(device, nics[i]) == distance(device, nics[found[0]])) {
      found.push_back(i);
    }
  }
  return found;
}

}  // namespace

void prefer_near(const Machine& machine, const std::string& bus, std::vector<Nic>& nics) {
  if (!machine.requested.empty()) return;  // the user's order stays
  if (nics.empty() || nics[0].fabric == Fabric::ethernet) return;
  const std::string devices = machine.sysfs + "/bus/pci/devices";
  std::string own = bus;
  std::transform(own.begin(), own.end(), own.begin(), to_lower);
  const PciLocation device = locate(devices + "/" + own);
  if (own.empty() || device.path.empty()) return;

  std::vector<PciLocation> ports;  // of the fabric and rate of the first
  for (const Nic& nic : nics) {
    if (nic.fabric != nics[0].fabric || nic.bandwidth != nics[0].bandwidth) break;
    ports.push_back(locate(machine.sysfs + "/class/infiniband/" +
                           nic.name.substr(0, nic.name.find(':')) + "/device"));
  }
  std::vector<size_t> near = nearest(device, ports);
  // Devices of one kind with the same nearest ports share these ports out in order.
  const std::string kind = read_attribute(devices + "/" + own + "/class");
  size_t sharers = 0, place = 0;
  for (const std::string& other : list_directory(devices)) {
    if (read_attribute(devices + "/" + other + "/class") != kind) continue;
    if (nearest(locate(devices + "/" + other), ports) != near) continue;
    if (other == own) place = sharers;
    ++sharers;
  }
  if (sharers > 0) {
    std::rotate(near.begin(), near.begin() + place * near.size() / sharers, near.end());
  }

  std::vector<size_t> order = near;
  std::vector<size_t> rest;
  for (size_t i = 0; i < ports.size(); ++i) {
    if (std::find(near.begin(), near.end(), i) == near.end()) rest.push_back(i);
  }
  std::stable_sort(rest.begin(), rest.end(), [&](size_t a, size_t b) {
    return distance(device, ports[a]) < distance(device, ports[b]);
  });
  order.insert(order.end(), rest.begin(), rest.end());
  std::vector<Nic> moved;
  for (size_t index : order) moved.push_back(nics[index]);
  std::copy(moved.begin(), moved.end(), nics.begin());
}

}  // namespace hetcomm
