#pragma once

namespace hetcomm::emulated {

// Faults of a device. Thread-safe.
class DeviceFault {
 public:
  // FaultKind::device_error: an operation of a device fails, and the error sticks. The device
  // performs nothing afterwards, and every call for the device returns the error.
  // strikes() counts an operation. True if it is the faulty one, or comes after it.
  static bool strikes(int device);
  static bool struck(int device);
  // FaultKind::query_hang: counts a query, and never returns after the fault.
  static void query(int device);
};

}  // namespace hetcomm::emulated
