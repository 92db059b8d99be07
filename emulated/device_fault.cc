#include "emulated/device_fault.h"

#include <array>
#include <atomic>

#include "emulated/settings.h"

namespace hetcomm::emulated {

namespace {

std::array<std::atomic<int64_t>, kMostDevices> operations;

}  // namespace

bool DeviceFault::strikes(int device) {
  if (!settings().injects(FaultKind::device_error, device)) return false;
  return ++operations[static_cast<size_t>(device)] > settings().after;
}

bool DeviceFault::struck(int device) {
  return settings().injects(FaultKind::device_error, device) &&
         operations[static_cast<size_t>(device)] > settings().after;
}

}  // namespace hetcomm::emulated
