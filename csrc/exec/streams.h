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
  Stream to_host() const { return to_host_; }
  Stream from_host() const { return from_host_; }
  Stream inside() const { return inside_; }

 private:
  std::shared_ptr<Device> device_;
  const DeviceKernels* kernels_;
  Stream to_host_, from_host_, inside_;
};

}  // namespace hetcomm
