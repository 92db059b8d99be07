#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "device/vendor.h"

namespace hetcomm {

// Every function of a vendor's runtime that hetcomm calls: X(name, result, parameters). The symbol
// is the vendor's prefix and the name (cudaMemcpyAsync, hipMemcpyAsync), or a spelling of the
// vendor's row. Enumerations are ints, with equal values in CUDA and HIP.
// clang-format off
#define HETCOMM_RUNTIME_SYMBOLS(X) \
  X(GetDeviceCount, int, (int* count)) \
  X(SetDevice, int, (int device)) \
  X(GetDevice, int, (int* device)) \
  X(RuntimeGetVersion, int, (int* version)) \
  X(DriverGetVersion, int, (int* version)) \
  X(GetErrorString, const char*, (int error)) \
  X(GetLastError, int, ()) \
  X(StreamCreateWithPriority, int, (void** stream, unsigned flags, int priority)) \
  X(StreamDestroy, int, (void* stream)) \
  X(StreamWaitEvent, int, (void* stream, void* event, unsigned flags)) \
  X(StreamIsCapturing, int, (void* stream, int* status)) \
  X(ThreadExchangeStreamCaptureMode, int, (int* mode)) \
  X(EventCreateWithFlags, int, (void** event, unsigned flags)) \
  X(EventDestroy, int, (void* event)) \
  X(EventRecord, int, (void* event, void* stream)) \
  X(EventQuery, int, (void* event)) \
  X(MemcpyAsync, int, (void* target, const void* source, size_t bytes, int kind, void* stream)) \
  X(Malloc, int, (void** pointer, size_t bytes)) \
  X(Free, int, (void* pointer)) \
  X(HostAlloc, int, (void** pointer, size_t bytes, unsigned flags)) \
  X(FreeHost, int, (void* pointer)) \
  X(LaunchHostFunc, int, (void* stream, void (*function)(void*), void* argument)) \
  X(PointerGetAttributes, int, (void* attributes, const void* pointer)) \
  X(DeviceGetPCIBusId, int, (char* text, int bytes, int device)) \
  X(DeviceGetAttribute, int, (int* value, int attribute, int device)) \
  X(GetDeviceProperties, int, (void* properties, int device))
// clang-format on

// The functions of one vendor's runtime, called as `runtime.MemcpyAsync(...)`. They return 0 or the
// vendor's error. Loaded at first use and kept until the process ends. Thread-safe.
struct Runtime {
#define X(name, result, parameters) result(*name) parameters = nullptr;
  HETCOMM_RUNTIME_SYMBOLS(X)
#undef X

  const Vendor* vendor = nullptr;
  std::string path;       // of the file that was loaded
  std::string version;    // "CUDA 13.0"
  bool emulated = false;  // exports hetcomm_emulated_vendor()
  bool reached = true;    // transports reach its devices' memory; an emulated runtime says whether

  // "cudaMalloc: out of memory (error 2)". Clears the runtime's last error.
  std::string failure(const std::string& symbol, int error) const;
};

enum RuntimeValue : int {
  kSuccess = 0,
  kInsufficientDriver = 35,
  kNotReady = 600,
  kCaptureImplicit = 906,  // a query of the default stream while another stream is captured
  kCopyAny = 4,            // cudaMemcpyDefault: the pointers tell the direction
  kMemoryDevice = 2,
  kMemoryManaged = 3,
  kStreamNonBlocking = 1,
  kEventWithoutTiming = 2,
  kHostPortable = 1,
  kHostMapped = 2,
  kCaptureRelaxed = 2,
  kSeenByOwner = 100,       // of the attribute `remote_writes`: the device orders such writes
  kHighestPriority = -128,  // the runtime clamps it
};

// While it exists, captures of other streams do not forbid this thread's calls of the runtime.
class OutsideCapture {
 public:
  explicit OutsideCapture(const Runtime& runtime) : runtime_(runtime) {
    runtime_.ThreadExchangeStreamCaptureMode(&mode_);
  }
  ~OutsideCapture() { runtime_.ThreadExchangeStreamCaptureMode(&mode_); }
  OutsideCapture(const OutsideCapture&) = delete;

 private:
  const Runtime& runtime_;
  int mode_ = kCaptureRelaxed;
};

// Throws Error(vendor) if there is no usable runtime. A later call tries again.
const Runtime& load_runtime(const Vendor& vendor);
// The devices that this process sees, at least one. Throws Error(vendor) with the reason if there
// are none.
int count_devices(const Runtime& runtime);

}  // namespace hetcomm
