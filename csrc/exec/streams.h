#pragma once

#include <memory>
#include <string>
#include <utility>

#include "device/device_kernels.h"

namespace hetcomm {

// The streams of one communicator on its rank's device. Copies to host memory, copies from host
// memory and work inside the device have a stream each, so they overlap. Owned by Paths; used under
// the executor's lock.
class Streams {
 public:
  explicit Streams(std::shared_ptr<Device> device)  // throws Error(vendor)
      : device_(std::move(device)),
        to_host_(device_->make_stream()),
        from_host_(device_->make_stream()),
        inside_(device_->make_stream()) {
    std::string ignored;  // set-up reports the reason
    kernels_ = DeviceKernels::of(*device_, ignored);
  }
  ~Streams() {
    for (Stream stream : {to_host_, from_host_, inside_}) device_->destroy(stream);
  }
  Streams(const Streams&) = delete;

  const std::shared_ptr<Device>& device() const { return device_; }
  const DeviceKernels* kernels() const { return kernels_; }  // null if the device has none
  Stream to_host() const { return to_host_; }
  Stream from_host() const { return from_host_; }
  Stream inside() const { return inside_; }

 private:
  const std::shared_ptr<Device> device_;
  const Stream to_host_, from_host_, inside_;
  const DeviceKernels* kernels_;
};

}  // namespace hetcomm
