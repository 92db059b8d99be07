#pragma once

#include <memory>

#include "device/device_kernels.h"

namespace hetcomm {

// The streams of one communicator on its rank's device: one for copies to host memory, one for
// copies from it, one for work inside the device, so that all three overlap. Owned by Paths; used
// under the executor's lock.
class Streams {
 public:
  explicit Streams(std::shared_ptr<Device> device);  // throws Error(vendor)
  ~Streams();
  Streams(const Streams&) = delete;

  const std::shared_ptr<Device>& device() const { return device_; }
  const DeviceKernels* kernels() const { return kernels_; }  // null where the device has none
  Stream outward() const { return outward_; }
  Stream inward() const { return inward_; }
  Stream inner() const { return inner_; }

 private:
  std::shared_ptr<Device> device_;
  const DeviceKernels* kernels_;
  Stream outward_, inward_, inner_;
};

}  // namespace hetcomm
