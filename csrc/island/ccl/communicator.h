#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "device/device.h"
#include "island/ccl/ccl.h"
#include "island/ccl/detached.h"
#include "island/ccl/library.h"
#include "island/ccl/lowering.h"

namespace hetcomm {

// One non-blocking communicator of a vendor's library and the stream on which it works. Nothing
// here waits for the library without a bound: what may block runs on a detached thread, which keeps
// the communicator as long as it runs. Owned by the engine; called by one thread at a time.
class CclCommunicator : public std::enable_shared_from_this<CclCommunicator> {
 public:
  // Waits until all members have come; throws Error(timeout) and Error(vendor).
  static std::shared_ptr<CclCommunicator> open(const CclOptions& options, Deadline deadline);

  const CclLibrary& library() const { return library_; }
  Device& device() const { return *device_; }
  Stream stream() const { return stream_; }
  int rank() const { return rank_; }

  // Hands the calls to the library, as one group if they are several. They are in the stream once
  // state() is success. On failure sets `function` to what failed.
  nccl::Result issue(const std::vector<nccl::Call>& calls, std::string& function);
  nccl::Result state() const;  // in_progress, success, or what went wrong meanwhile
  // "NCCL 2.28.3: ncclAllReduce: unhandled system error: <the library's last words>".
  std::string failure(const std::string& function, nccl::Result result) const;

  // Stops what is under way and frees everything, in the background; nothing but aborted() may be
  // called afterwards. aborted() tells whether that is over.
  void abort();
  bool aborted(Deadline deadline) const;
  // Ends an idle communicator in agreement with the other members; false if that is not over in
  // time, and goes on in the background. Nothing may be called afterwards.
  bool close(Deadline deadline);

 private:
  explicit CclCommunicator(const CclOptions& options);
  Status begin(const CclOptions& options, nccl::Result& result);
  void finish();
  void release_stream();
  nccl::Result call(const nccl::Call& call);

  const std::shared_ptr<Device> device_;
  const CclLibrary& library_;
  const std::string network_;  // read by the library as long as it lives
  const int rank_;
  nccl::Communicator* handle_ = nullptr;
  Stream stream_ = nullptr;
  std::optional<Detached> abort_;
};

}  // namespace hetcomm
