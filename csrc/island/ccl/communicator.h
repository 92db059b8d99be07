#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "device/device.h"
#include "island/ccl/call_guard.h"
#include "island/ccl/ccl.h"
#include "island/ccl/detached.h"
#include "island/ccl/library.h"
#include "island/ccl/library_log.h"
#include "island/ccl/lowering.h"

namespace hetcomm {

// The two communicators of a vendor's library for one island, and the stream on which they work.
// The first is non-blocking, so that set-up is bounded. For each of its calls the library starts a
// thread, and hetcomm polls until the launch is over. The second is blocking and split off the
// first: a call is in the stream when it returns, which saves thread and polling. Collectives use
// the second one. Sends and receives use the first, because a library connects them at their first
// use and would block there. Both launch on one stream, one call after the other.
//
// No call waits for the library without a bound. A function that may block runs under a CallGuard,
// or on a detached thread, which keeps this object alive. Owned by the engine; called by one thread
// at a time.
class CclCommunicator : public std::enable_shared_from_this<CclCommunicator> {
 public:
  // Waits for all members. `log` exists since before the library's first call here, and
  // `asks_to_connect` tells that hetcomm, not the user, has set NCCL_RUNTIME_CONNECT. Throws
  // Error(timeout) and Error(vendor).
  static std::shared_ptr<CclCommunicator> open(const CclOptions& options, Deadline deadline,
                                               LibraryLog& log, bool asks_to_connect);

  const CclLibrary& library() const { return library_; }
  Device& device() const { return *device_; }
  Stream stream() const { return stream_; }
  int rank() const { return rank_; }
  // Why there is no blocking communicator; empty if there is one.
  const std::string& without_blocking() const { return without_blocking_; }

  // Hands the calls to the library, several calls as one group. They are in the stream once the
  // result, or later state(), is success. A failure sets `function` to the function that failed.
  // With a factor, the library multiplies contributions before it sums.
  nccl::Result issue(const std::vector<nccl::Call>& calls, std::string& function);
  nccl::Result issue(std::vector<nccl::Call> calls, nccl::Factor factor, std::string& function);
  nccl::Result state() const;  // in_progress, success, or an asynchronous error
  bool overdue() const { return guard_ && guard_->fired(); }  // a call did not return in time

  // For whole buffers, named by their addresses. Registrations end with the communicator. Throw
  // Error.
  void register_buffer(void* pointer, size_t bytes);
  void deregister_buffer(void* pointer);

  // Ends all calls and frees everything, in the background. Only aborted() may follow, which waits
  // for the end.
  void abort();
  bool aborted(Deadline deadline) const;
  // Ends an idle communicator together with the other members. False if the end takes longer than
  // the deadline; it then continues in the background. No call may follow.
  bool close(Deadline deadline);

 private:
  struct Side {
    nccl::Communicator* handle = nullptr;  // the library sets it, perhaps on a thread of its own
    bool ended = false;                    // under ending_
  };

  explicit CclCommunicator(const CclOptions& options);
  nccl::Config config(const CclOptions& options) const;
  nccl::Result begin(const CclOptions& options);
  // `late`: this member's library connects inside its first collectives all the same.
  void add_blocking(const CclOptions& options, Deadline deadline, bool late);
  void split_blocking(const CclOptions& options, Deadline deadline, bool late);
  void drop_blocking(Deadline deadline);
  // Runs a function of the library on a thread, and polls the first side until the function is
  // over. False: the library has refused a split at once, and nothing has changed. Any other
  // failure aborts this communicator and throws Error.
  bool perform(const char* function, std::function<nccl::Result()> begin, const CclOptions& options,
               Deadline deadline);
  nccl::Result poll(const Side& side) const;
  nccl::Result call(const nccl::Call& call, nccl::Communicator* handle);
  nccl::Result group(const std::vector<nccl::Call>& calls, nccl::Communicator* handle,
                     std::string& function);
  void end(Side& side);
  void finish();
  bool finalize(Side& side, Deadline deadline);
  void drop_registrations();

  const std::shared_ptr<Device> device_;
  const CclLibrary& library_;
  const std::string network_;  // the library reads it while the communicators exist
  const int rank_;
  const std::chrono::nanoseconds call_bound_;
  std::mutex ending_;
  Side first_;
  Side blocking_;
  std::string without_blocking_;
  std::optional<CallGuard> guard_;  // of calls to the blocking side; none without that side
  struct Registration {
    nccl::Communicator* communicator;
    void* handle;
  };
  std::map<void*, std::vector<Registration>> registrations_;
  Stream stream_ = nullptr;
  bool stream_released_ = false;  // under ending_
  std::optional<Detached> abort_;
};

}  // namespace hetcomm
