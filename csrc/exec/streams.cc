#include "exec/streams.h"

namespace hetcomm {
namespace {

const DeviceKernels* kernels_of(Device& device) {
  std::string ignored;  // told at set-up
  return DeviceKernels::of(device, ignored);
}

}  // namespace

Streams::Streams(std::shared_ptr<Device> device)
    : device_(std::move(device)),
      kernels_(kernels_of(*device_)),
      to_host_(device_->make_stream()),
      from_host_(device_->make_stream()),
      inside_(device_->make_stream()) {}

Streams::~Streams() {
  for (Stream stream : {to_host_, from_host_, inside_}) device_->destroy(stream);
}

}  // namespace hetcomm
