#pragma once

namespace hetcomm::emulated {

// FaultKind::device_error: an operation of a device fails, and the error sticks. The device
// performs nothing afterwards, and every call for the device returns the error. Thread-safe.
class DeviceFault {
 public:
  // Counts an operation of the device. True if it is the faulty one, or comes after it.
  static bool strikes(int device);
  static bool struck(int device);
};

}  // namespace hetcomm::emulated
