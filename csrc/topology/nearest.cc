#include <algorithm>
#include <cctype>
#include <filesystem>
#include <tuple>

#include "topology/machine.h"
#include "topology/sysfs.h"

namespace hetcomm {
namespace {

// Where a PCI device sits: the bridges on the way to it, from the root, and its NUMA node.
struct Place {
  std::vector<std::string> path;
  int numa = -1;
};

// Of the device that a link in sysfs leads to; an empty path if there is none.
Place place_of(const std::string& link) {
  Place place;
  std::error_code error;
  std::filesystem::path target = std::filesystem::canonical(link, error);
  if (error) return place;
  for (const auto& part : target) {
    // "pci0000:15" opens the way, "0000:16:00.0" continues it.
    bool is_root = part.string().rfind("pci", 0) == 0;
    if (is_root || !place.path.empty()) place.path.push_back(part.string());
  }
  place.numa = static_cast<int>(read_number(link + "/numa_node", -1));
  return place;
}

// Smaller is nearer: another NUMA node last, then by what they share of their ways.
std::tuple<bool, int> distance(const Place& device, const Place& nic) {
  auto differ =
      std::mismatch(device.path.begin(), device.path.end(), nic.path.begin(), nic.path.end());
  return {device.numa != nic.numa, -static_cast<int>(differ.first - device.path.begin())};
}

// The indices of the nearest of `nics` and how far they are.
std::vector<size_t> nearest(const Place& device, const std::vector<Place>& nics) {
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
  if (!machine.requested.empty()) return;  // the user ordered them
  if (nics.empty() || nics[0].fabric == Fabric::ethernet) return;
  const std::string devices = machine.sysfs + "/bus/pci/devices";
  std::string own = bus;
  std::transform(own.begin(), own.end(), own.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  const Place device = place_of(devices + "/" + own);
  if (own.empty() || device.path.empty()) return;

  std::vector<Place> places;  // of the ports as good as the first
  for (const Nic& nic : nics) {
    if (nic.fabric != nics[0].fabric || nic.bandwidth != nics[0].bandwidth) break;
    places.push_back(place_of(machine.sysfs + "/class/infiniband/" +
                              nic.name.substr(0, nic.name.find(':')) + "/device"));
  }
  std::vector<size_t> near = nearest(device, places);
  // Devices of the same kind that these ports are the nearest for share them out in order.
  const std::string kind = read_attribute(devices + "/" + own + "/class");
  size_t rivals = 0, turn = 0;
  for (const std::string& other : list_directory(devices)) {
    if (read_attribute(devices + "/" + other + "/class") != kind) continue;
    if (nearest(place_of(devices + "/" + other), places) != near) continue;
    if (other == own) turn = rivals;
    ++rivals;
  }
  if (rivals > 0) std::rotate(near.begin(), near.begin() + turn * near.size() / rivals, near.end());

  std::vector<size_t> order = near;
  std::vector<size_t> rest;
  for (size_t i = 0; i < places.size(); ++i) {
    if (std::find(near.begin(), near.end(), i) == near.end()) rest.push_back(i);
  }
  std::stable_sort(rest.begin(), rest.end(), [&](size_t a, size_t b) {
    return distance(device, places[a]) < distance(device, places[b]);
  });
  order.insert(order.end(), rest.begin(), rest.end());
  std::vector<Nic> moved;
  for (size_t index : order) moved.push_back(nics[index]);
  std::copy(moved.begin(), moved.end(), nics.begin());
}

}  // namespace hetcomm
