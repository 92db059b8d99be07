#include "exec/streams.h"

namespace hetcomm {

Streams::Streams(std::shared_ptr<Device> device)
    : device_(std::move(device)),
      outward_(device_->make_stream()),
      inward_(device_->make_stream()),
      inner_(device_->make_stream()) {}

Streams::~Streams() {
  for (Stream stream : {outward_, inward_, inner_}) device_->destroy(stream);
}

}  // namespace hetcomm
