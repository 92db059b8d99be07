#pragma once

#include <cstdint>
#include <string>

#include "emulated/hostile.h"

// The emulated vendors: libraries with the runtime ("cuda*" or "hip*") and the collective library
// ("nccl*") of one vendor over host memory. Programs for that vendor's GPUs run on them without a
// GPU. No part of hetcomm links them; variables name them like any vendor's library. Environment:
//
//   HETCOMM_EMULATED_DEVICES    number of devices, 8 unless set; 0: a machine without a device
//   HETCOMM_EMULATED_COPY_RATE  bytes per second ("256M", "1G") of a device's two copy engines, one
//                               for each direction between pinned and device memory; unset: the
//                               speed of memcpy
//   HETCOMM_EMULATED_LATENCY    microseconds of each of those copies before its first byte
//   HETCOMM_EMULATED_DIRECT     1: transports reach the memory of devices; 0 unless set
//   HETCOMM_EMULATED_CALLS      1: hetcomm_emulated_calls() counts the calls of each function
//   HETCOMM_EMULATED_NETWORKS   networks that ncclConfig_t.netName may name, "Socket" unless set
//   HETCOMM_EMULATED_HOSTILE    what the vendors' documentation permits and their devices may do,
//                               so that programs for them must bear it. Parts, as in
//                               "queues:1,sync,poison,delays:7"; none unless set:
//     queues:N         a device has N hardware queues, which streams take in turn. A queue performs
//                      the operations of its streams in the order of submission, so a wait of one
//                      stream holds up the others (CUDA_DEVICE_MAX_CONNECTIONS)
//     sync             calls that may wait for all work of the device do: allocating, registering
//                      and freeing memory, making streams and events, and the first launch of a
//                      host function, which stands for the loading of a kernel. Work of the default
//                      stream comes between the work of blocking streams
//     gates            a host function of 100 ms or more is a gate that a test opens: calls that
//                      may wait for the device do not wait while there is one
//     poison           undefined memory holds a pattern: new and freed memory, and the target of a
//                      copy or collective from its beginning to its end
//     order            a device performs the calls of its communicators one after another, as they
//                      were launched. Members that launch calls of several communicators in
//                      different orders wait for each other; after the bound both orders are
//                      printed, and a communicator fails
//     lazy             the first collective of each kind, and the first message with each peer,
//                      connects inside the call, which waits for the other members. With `sync` it
//                      waits for the device, too. Collectives connect in set-up if
//                      NCCL_RUNTIME_CONNECT was 0 at the first set-up of the process, or before
//                      version 2.22
//     late             an asynchronous error shows up to 0.3 s after it happened
//     handles          a call for a communicator that is gone ends the process, and so does
//                      ncclCommDestroy while another thread is in a call for the communicator
//     ends             ncclCommFinalize waits until the other members call it, too, or are gone.
//                      Their other calls wait for this member
//     delays:SEED      one of eight operations begins up to 1.5 ms later, and so does the launch of
//                      a call of a non-blocking communicator
//     bound:SECONDS    with any part, calls that wait for work fail with error 702 after this time
//                      (10 s unless set), and print what every queue of the device waits for
//   HETCOMM_EMULATED_FAULT      one fault, for all members or for one member of each communicator
//                               ("hang:3@1" is member 1 only):
//     init_hang        a communicator's set-up never ends until it is aborted
//     init_error       a communicator's set-up fails with ncclSystemError
//     async_error:N    the collective after N fails with ncclRemoteError, asynchronously, and its
//                      stream hangs until the communicator is aborted
//     hang:N           the collective after N hangs until the communicator is aborted
//     split_hang       ncclCommSplit hangs until the parent is aborted
//     split_error      ncclCommSplit fails with ncclSystemError, asynchronously if the parent does
//                      not block
//     call_hang:N      the collective after N on a blocking communicator does not return until that
//                      communicator, or one that shares its resources, is aborted
//     abort_hang       ncclCommAbort never returns
//     device_error:N   the operation of a device after N fails, and so does every later call for
//                      that device (error 700); M is the index of the device
//     query_hang:N     EventQuery for a device never returns after N calls; M as above
//     old_version      ncclGetVersion says 2.14.3
//     version:N        ncclGetVersion says N, such as 22203
//     old_runtime      the runtime says CUDA 10.2 or HIP 4.5
//
// A member is a rank inside the communicator, or inside the parent of a split. A send or recv
// counts as a collective.
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
  device_error,
  query_hang,
  version,
  old_version,
  old_runtime,
};

constexpr int kMostDevices = 128;

struct Settings {
  int devices = 8;
  Hostile hostile;
  int64_t copy_rate = 0;  // bytes per second, 0: unlimited
  int64_t latency_us = 0;
  bool direct = false;
  std::string networks = "Socket";
  bool counts = false;
  FaultKind fault = FaultKind::none;
  int64_t after = 0;  // calls before the fault, or the version
  int member = -1;    // the member with the fault, -1: all

  bool injects(FaultKind kind, int rank) const {
    return fault == kind && (member < 0 || member == rank);
  }
  bool injects(FaultKind kind) const { return fault == kind; }
};

// The environment at the first use of the library. Never destroyed. Thread-safe. unusable() is an
// error text for a bad value, with which the runtime fails every call; empty if all values are
// good.
const Settings& settings();
const std::string& unusable();

}  // namespace hetcomm::emulated
