#pragma once

#include <ATen/ATen.h>
#include <c10/core/Stream.h>

#include <memory>
#include <string>

#include "device/device.h"

namespace hetcomm {

// Where a process group's buffers live, as torch sees it: host memory, or the memory of one device.
// Constant after creation, so thread-safe.
class Home {
 public:
  // How the tensors of one call take part.
  enum class Access {
    direct,    // as they are; the host waits for the operation
    streamed,  // as they are, in the order of torch's current stream
    copied,    // tensors in host memory on a device's rank: through copies on the device
  };

  // `device` is null for host memory; `vendor` and `host` are for messages.
  Home(std::shared_ptr<Device> device, int rank, std::string vendor, std::string host);
  ~Home();
  Home(const Home&) = delete;

  // Throws Error(invalid_argument) if tensors there cannot take part.
  Access access(const at::Tensor& tensor, const char* operation) const;
  // The device on which torch has tensors of this home.
  at::Device device() const { return torch_device_; }
  // Whether torch itself works on the device, so that its streams order the group's operations.
  bool streams() const { return streams_; }
  c10::Stream current_stream() const;
  // Fills host memory from the device's, where nothing is under way any more, and returns when it
  // is done. On a stream that never waits: torch's may wait for operations that only the calling
  // thread moves forward. Throws Error(vendor).
  void copy_to_host(const at::Tensor& to, const at::Tensor& from) const;
  // A stream on which only this group works.
  c10::Stream side_stream() const { return *side_stream_; }

 private:
  std::string who() const;

  std::shared_ptr<Device> device_;
  int rank_;
  std::string vendor_, host_;
  at::Device torch_device_ = at::kCPU;
  bool streams_ = false;
  std::optional<c10::Stream> side_stream_;
  Stream outward_ = nullptr;
};

// The vendor's handle of torch's stream.
Stream native(const c10::Stream& stream);

}  // namespace hetcomm
