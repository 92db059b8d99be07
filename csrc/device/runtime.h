#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "device/vendor.h"

namespace hetcomm {

// Every function of a vendor's runtime that hetcomm calls: X(name, result, parameters). The symbol
// is the vendor's prefix and the name (cudaMemcpyAsync, hipMemcpyAsync), or what the vendor's row
// spells. Enumerations are ints: those used here have equal values in CUDA and HIP. The emulated
// vendors export exactly this table.
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
  X(GetDeviceProperties, int, (void* properties, int device))
// clang-format on

// The functions of one vendor's runtime, called as `runtime.MemcpyAsync(...)`; they return 0 or the
// vendor's error. Made on first use, kept for the life of the process; thread-safe.
struct Runtime {
#define X(name, result, parameters) result(*name) parameters = nullptr;
  HETCOMM_RUNTIME_SYMBOLS(X)
#undef X
  // Null where the vendor has none for ordinary pinned memory.
  int (*StreamWaitValue32)(void* stream, uint64_t address, uint32_t value,
                           unsigned flags) = nullptr;

  const Vendor* vendor = nullptr;
  std::string path;       // of the file that was loaded
  std::string version;    // "CUDA 13.0"
  bool emulated = false;  // exports hetcomm_emulated_vendor()
  bool reached = true;  // transports may reach its devices' memory; an emulated one says so itself

  // "cudaMalloc: out of memory (error 2)"; takes the error off the runtime's record of it.
  std::string failure(const std::string& symbol, int error) const;
};

enum RuntimeValue : int {
  kSuccess = 0,
  kInsufficientDriver = 35,
  kNoDevice = 100,
  kNotReady = 600,
  kCaptureImplicit = 906,  // asked about the default stream while another stream is captured
  kCopyAny = 4,            // cudaMemcpyDefault: from where to where is seen by the pointers
  kMemoryDevice = 2,
  kMemoryManaged = 3,
  kStreamNonBlocking = 1,
  kEventWithoutTiming = 2,
  kHostPortable = 1,
  kHostMapped = 2,
  kCaptureRelaxed = 2,
  kHighestPriority = -128,  // clamped to what the device has
};

// Throws Error(vendor): what was looked for and found, the remedy. A later call tries again.
const Runtime& load_runtime(const Vendor& vendor);
// How many devices this process sees, at least one; throws Error(vendor) that says why there are
// none.
int count_devices(const Runtime& runtime);

}  // namespace hetcomm
