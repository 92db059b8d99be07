#include "bootstrap/device_facts.h"

#include <algorithm>

#include "base/config.h"
#include "device/device_kernels.h"
#include "device/vendor.h"
#include "island/ccl/ccl.h"
#include "topology/machine.h"

namespace hetcomm {
namespace {

constexpr size_t kSampleBytes = 4096;
// Over CUDA's inter-process memory a message of two ranks on one H100 took 0.2 to 1 ms, whatever
// its size (docs/hardware.md). Staging was faster up to 1 MiB, and slower from 4 MiB on.
constexpr int64_t kDirectBytes = 2 << 20;

// Why the transport stages the device's memory over a fabric; empty if messages are direct. Over
// RDMA every port that the rank may use must support it.
std::string why_staged(Fabric fabric, const RankInfo& info, const MemorySample& sample,
                       const Transport& transport) {
  if (fabric == Fabric::shm) return transport.why_not_direct(sample, "");
  for (const Nic& nic : info.nics) {
    if (nic.fabric != fabric) continue;
    const std::string device = nic.name.substr(0, nic.name.find(':'));  // of port "mlx4_0:2"
    if (std::string why = transport.why_not_direct(sample, device); !why.empty()) return why;
  }
  return "";
}

bool has(const RankInfo& info, Fabric fabric) {
  return fabric == Fabric::shm || std::any_of(info.nics.begin(), info.nics.end(),
                                              [&](const Nic& nic) { return nic.fabric == fabric; });
}

// Sets the fabrics over which messages are direct. Returns these fabrics, and the reasons against
// other fabrics, for people.
std::string find_direct(RankInfo& info, Device& device, const Transport* transport) {
  if (setting("HETCOMM_DIRECT", 1, 0, 1) == 0) return "staged: HETCOMM_DIRECT=0";
  if (!device.reached()) return "staged: transports do not reach this emulated device";
  if (transport == nullptr) return "staged: there is no transport";
  const MemorySample sample{device.memory(), device.allocate(kSampleBytes), kSampleBytes};
  std::string over, reasons;
  for (Fabric fabric : {Fabric::shm, Fabric::infiniband, Fabric::roce}) {
    if (!has(info, fabric)) continue;
    std::string why = why_staged(fabric, info, sample, *transport);
    if (why.empty() && fabric != Fabric::shm && !device.sees_remote_writes()) {
      why = "the device does not order the writes of a network card";
    }
    if (why.empty()) {
      info.direct.insert(fabric);
      if (fabric == Fabric::shm) info.direct_bytes = least_direct_bytes();
      over += (over.empty() ? "direct over " : ", ") + std::string(name(fabric));
      if (fabric == Fabric::shm && info.direct_bytes > 0) {
        over += " from " + format_bytes(info.direct_bytes) + " on";
      }
    } else {
      reasons += std::string("; staged over ") + name(fabric) + ": " + why;
    }
  }
  device.release(const_cast<void*>(sample.data));
  return over.empty() ? reasons.substr(2) : over + reasons;
}

}  // namespace

int64_t least_direct_bytes() { return setting("HETCOMM_DIRECT_BYTES", kDirectBytes, 0, INT64_MAX); }

std::shared_ptr<Device> open_device(RankInfo& info, const Transport* transport, int index) {
  const Vendor* vendor = find_vendor(info.vendor);
  if (vendor == nullptr) return nullptr;
  if (index < 0) index = static_cast<int>(setting("HETCOMM_DEVICE", -1, -1, 1 << 16));
  if (index < 0) {
    index = static_cast<int>(setting("LOCAL_RANK", 0, 0, 1 << 16)) % Device::count(info.vendor);
  }
  std::shared_ptr<Device> device = Device::open(info.vendor, index);
  info.memory = Memory::device;
  info.device = device->name() + " " + device->bus();
  prefer_near(Machine::current(), device->bus(), info.nics);
  info.libraries["runtime"] = device->describe();
  info.libraries["messages"] = find_direct(info, *device, transport);
  std::string no_kernels;
  const DeviceKernels* kernels = DeviceKernels::of(*device, no_kernels);
  info.kernels = kernels != nullptr;
  info.libraries["kernels"] = kernels ? kernels->describe() : no_kernels;
  try {
    info.ccl = ccl_version(*vendor);
    const std::string architecture = device->emulated()   ? "emulated"
                                     : kernels != nullptr ? kernels->architecture()
                                                          : "";
    std::string why = vendor->why_no_float8(info.ccl, architecture);
    info.float8 = why.empty();
    if (!why.empty()) info.libraries["float8"] = why;
  } catch (const Error& error) {
    info.libraries["ccl"] = error.status().text();  // needed only in islands of several ranks
  }
  return device;
}

}  // namespace hetcomm
