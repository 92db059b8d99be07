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
      outward_(device_->make_stream()),
      inward_(device_->make_stream()),
      inner_(device_->make_stream()) {}

Streams::~Streams() {
  for (Stream stream : {outward_, inward_, inner_}) device_->destroy(stream);
}

}  // namespace hetcomm
