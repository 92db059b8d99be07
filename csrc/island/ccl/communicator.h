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
#include "island/ccl/lowering.h"

namespace hetcomm {

// What a vendor's library needs for one group of members, and the stream on which it works: two of
// its communicators. The first is non-blocking, so that set-up is bounded; the library launches
// each of its calls on a new thread and is polled until that is over. The second, split off the
// first, is blocking: a call is in the stream when it returns, which saves both. Collectives take
// the second one. Sends and receives take the first, because a library connects them when they
// first meet and would wait there. Both launch on one stream, one call after the other.
//
// Nothing here waits for the library without a bound: what may block runs on a detached thread,
// which keeps this object as long as it runs, or under a CallGuard. Owned by the engine; called by
// one thread at a time.
class CclCommunicator : public std::enable_shared_from_this<CclCommunicator> {
 public:
  // Waits until all members have come; throws Error(timeout) and Error(vendor).
  static std::shared_ptr<CclCommunicator> open(const CclOptions& options, Deadline deadline);

  const CclLibrary& library() const { return library_; }
  Device& device() const { return *device_; }
  Stream stream() const { return stream_; }
  int rank() const { return rank_; }
  // Why there is no blocking communicator; empty if there is one.
  const std::string& without_blocking() const { return without_blocking_; }

  // Hands the calls to the library, as one group if they are several. They are in the stream once
  // the result, or else state(), is success. On failure sets `function` to what failed. With a
  // factor, sums are of contributions times it.
  nccl::Result issue(const std::vector<nccl::Call>& calls, std::string& function);
  nccl::Result issue(std::vector<nccl::Call> calls, nccl::Factor factor, std::string& function);
  nccl::Result state() const;  // in_progress, success, or what went wrong meanwhile
  bool overdue() const { return guard_ && guard_->struck(); }  // a call did not return in time

  // Of whole buffers, known by where they begin; gone when the communicator ends. Throw Error.
  void register_buffer(void* pointer, size_t bytes);
  void deregister_buffer(void* pointer);

  // Stops what is under way and frees everything, in the background; nothing but aborted() may be
  // called afterwards. aborted() tells whether that is over.
  void abort();
  bool aborted(Deadline deadline) const;
  // Ends an idle communicator in agreement with the other members; false if that is not over in
  // time, and goes on in the background. Nothing may be called afterwards.
  bool close(Deadline deadline);

 private:
  struct Side {
    nccl::Communicator* handle = nullptr;  // set by the library, at times on a thread of its own
    bool ended = false;                    // under ending_
  };

  explicit CclCommunicator(const CclOptions& options);
  nccl::Config config(const CclOptions& options) const;
  nccl::Result begin(const CclOptions& options);
  void add_blocking(const CclOptions& options, Deadline deadline);
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
  const std::string network_;  // read by the library as long as it lives
  const int rank_;
  const std::chrono::nanoseconds call_bound_;
  std::mutex ending_;
  Side first_;
  Side blocking_;
  std::string without_blocking_;
  std::optional<CallGuard> guard_;  // of calls to the blocking one, once there is one
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
