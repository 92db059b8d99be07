#include "comm/device_facts.h"

#include "base/config.h"
#include "device/device_kernels.h"
#include "device/vendor.h"
#include "island/ccl/ccl.h"
#include "topology/probe.h"

namespace hetcomm {

std::shared_ptr<Device> open_device(RankInfo& info, int index) {
  const Vendor* vendor = find_vendor(info.vendor);
  if (vendor == nullptr) return nullptr;
  if (index < 0) index = static_cast<int>(setting("HETCOMM_DEVICE", -1, -1, 1 << 16));
  if (index < 0) {
    index = static_cast<int>(setting("LOCAL_RANK", 0, 0, 1 << 16)) % Device::count(info.vendor);
  }
  std::shared_ptr<Device> device = Device::open(info.vendor, index);
  info.memory = Memory::device;
  info.device = device->name() + " " + device->bus();
  prefer_near(device->bus(), info);
  info.libraries["runtime"] = device->describe();
  std::string why_not;
  const DeviceKernels* kernels = DeviceKernels::of(*device, why_not);
  info.kernels = kernels != nullptr;
  info.libraries["kernels"] = kernels ? kernels->describe() : why_not;
  try {
    info.ccl = ccl_version(*vendor);
  } catch (const Error& error) {
    info.libraries["ccl"] = error.status().text();  // needed only in islands of several ranks
  }
  return device;
}

}  // namespace hetcomm
