#include "emulated/device_fault.h"

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "emulated/settings.h"

namespace hetcomm::emulated {

namespace {

std::array<std::atomic<int64_t>, kMostDevices> operations, queries;

}  // namespace

bool DeviceFault::strikes(int device) {
  if (!settings().injects(FaultKind::device_error, device)) return false;
  return ++operations[static_cast<size_t>(device)] > settings().after;
}

bool DeviceFault::struck(int device) {
  return settings().injects(FaultKind::device_error, device) &&
         operations[static_cast<size_t>(device)] > settings().after;
}

void DeviceFault::query(int device) {
  if (!settings().injects(FaultKind::query_hang, device)) return;
  const bool hangs = ++queries[static_cast<size_t>(device)] > settings().after;
  while (hangs) std::this_thread::sleep_for(std::chrono::seconds(1));
}

}  // namespace hetcomm::emulated
