#pragma once

#include <cstdint>
#include <string>

// The emulated vendor libraries: the runtime ("cuda*" or "hip*") and the collective library
// ("nccl*") of one vendor over host memory, so that programs written for that vendor's GPUs run
// without one. Nothing of hetcomm links them; they are named like any vendor's library. Environment
// variables:
//
//   HETCOMM_EMULATED_DEVICES    number of devices, 8 unless set; 0 behaves as a machine without one
//   HETCOMM_EMULATED_COPY_RATE  bytes per second ("256M", "1G") of each device's two copy engines,
//   one
//                               per direction between pinned and device memory; unset: memcpy's
//                               speed
//   HETCOMM_EMULATED_LATENCY    microseconds that each of those copies takes before its first byte
//   HETCOMM_EMULATED_DIRECT     1: transports reach the memory of devices; 0 unless set
//   HETCOMM_EMULATED_NETWORKS   networks that ncclConfig_t.netName may name; "Socket" unless set
//   HETCOMM_EMULATED_FAULT      one fault, for all members or for one member of each communicator
//                               ("hang:3@1" is member 1 only):
//     init_hang        a communicator's set-up never ends (aborting it does)
//     init_error       a communicator's set-up fails with ncclSystemError
//     async_error:N    the collective after N fails with ncclRemoteError, asynchronously, and its
//                      stream stands still until the communicator is aborted
//     hang:N           the collective after N never ends until the communicator is aborted
//     split_hang       ncclCommSplit never ends until the parent is aborted
//     split_error      ncclCommSplit fails with ncclSystemError, asynchronously where the parent
//                      does not block
//     call_hang:N      the collective after N on a blocking communicator does not return until that
//                      or what it shares resources with is aborted
//     abort_hang       ncclCommAbort never returns
//     no_wait_value    streams cannot wait for a value in memory (error 801, not supported)
//     old_version      ncclGetVersion says 2.14.3
//     version:N        ncclGetVersion says N, such as 22203
//     old_runtime      the runtime says CUDA 10.2 or HIP 4.5
//
// "Member" is the rank inside the communicator (of a split: the parent). A send or recv counts as a
// collective.
namespace hetcomm::emulated {

enum class FaultKind {
  none,
  init_hang,
  init_error,
  async_error,
  hang,
  split_hang,
  split_error,
  call_hang,
  abort_hang,
  no_wait_value,
  version,
  old_version,
  old_runtime,
};

struct Settings {
  int devices = 8;
  int64_t copy_rate = 0;  // bytes per second, 0: unlimited
  int64_t latency_us = 0;
  bool direct = false;
  std::string networks = "Socket";
  FaultKind fault = FaultKind::none;
  int64_t after = 0;  // calls before the fault, or the version
  int member = -1;    // whom it meets, -1: all

  bool strikes(FaultKind kind, int whom) const {
    return fault == kind && (member < 0 || member == whom);
  }
  bool strikes(FaultKind kind) const { return fault == kind; }
};

// What the environment said when the library was first used. Never destroyed. Thread-safe. A value
// that cannot be read ends in `unusable`, a text for the log; the runtime then fails every call.
const Settings& settings();
const std::string& unusable();

}  // namespace hetcomm::emulated
