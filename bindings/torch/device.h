#pragma once

#include <ATen/ATen.h>
#include <c10/core/Stream.h>

#include <memory>
#include <string>

#include "device/device.h"

namespace hetcomm {

// How an operation uses the tensors of a call.
enum class TensorAccess {
  direct,    // in place; the host waits for the operation
  streamed,  // in place, in the order of torch's current stream
  copied,    // host tensors on a rank with a device: through copies on the device
};

// torch's view of a process group's device: the CPU, or one accelerator. Constant after creation,
// so thread-safe.
class TorchDevice {
 public:
  // `device` is null for host memory; `vendor` and `host` are for messages.
  TorchDevice(std::shared_ptr<Device> device, int rank, std::string vendor, std::string host);
  ~TorchDevice();
  TorchDevice(const TorchDevice&) = delete;

  // Throws Error(invalid_argument) if the group does not serve the tensor's device.
  TensorAccess access(const at::Tensor& tensor, const char* operation) const;
  at::Device torch_device() const { return torch_device_; }
  // Whether torch has tensors on the device. Its streams then order the group's operations.
  bool has_streams() const { return has_streams_; }
  c10::Stream current_stream() const;
  // Copies a complete result to host memory, and waits for the copy. The copy's stream never waits
  // for operations: torch's streams may wait for one that only the calling thread moves forward.
  // Throws Error(vendor).
  void copy_to_host(const at::Tensor& to, const at::Tensor& from) const;
  // A stream of torch's for this group alone.
  c10::Stream side_stream() const { return *side_stream_; }

 private:
  std::shared_ptr<Device> device_;
  int rank_;
  std::string vendor_, host_;
  at::Device torch_device_ = at::kCPU;
  bool has_streams_ = false;
  std::optional<c10::Stream> side_stream_;
  Stream copy_stream_ = nullptr;
};

// The vendor's handle of a stream of torch's.
Stream native(const c10::Stream& stream);

}  // namespace hetcomm
