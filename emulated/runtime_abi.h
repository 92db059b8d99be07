#pragma once

#include <cstddef>
#include <cstdint>

// The emulated part of the vendors' runtime ABI: names, argument order, enum values and structs.
// Handles are void*, enums are int. tests/core/test_emulated_abi.py compares this file with the
// vendors' headers. The build defines HETCOMM_EMULATED_PREFIX, the beginning of symbols, and
// HETCOMM_EMULATED_HIP for a runtime like HIP's. Without it the runtime is like CUDA's.

// X(name, (parameters)): every function returns the vendor's error as int and its symbol begins
// with the vendor's prefix.
#define HETCOMM_EMULATED_RUNTIME_COMMON(X)                          \
  X(GetDeviceCount, (int*))                                         \
  X(SetDevice, (int))                                               \
  X(GetDevice, (int*))                                              \
  X(RuntimeGetVersion, (int*))                                      \
  X(DriverGetVersion, (int*))                                       \
  X(GetLastError, ())                                               \
  X(PeekAtLastError, ())                                            \
  X(DeviceSynchronize, ())                                          \
  X(DeviceGetPCIBusId, (char*, int, int))                           \
  X(DeviceGetAttribute, (int*, int, int))                           \
  X(DeviceGetStreamPriorityRange, (int*, int*))                     \
  X(StreamCreate, (void**))                                         \
  X(StreamCreateWithFlags, (void**, unsigned))                      \
  X(StreamCreateWithPriority, (void**, unsigned, int))              \
  X(StreamDestroy, (void*))                                         \
  X(StreamSynchronize, (void*))                                     \
  X(StreamQuery, (void*))                                           \
  X(StreamWaitEvent, (void*, void*, unsigned))                      \
  X(StreamIsCapturing, (void*, int*))                               \
  X(StreamBeginCapture, (void*, int))                               \
  X(StreamEndCapture, (void*, void**))                              \
  X(GraphInstantiateWithFlags, (void**, void*, unsigned long long)) \
  X(GraphLaunch, (void*, void*))                                    \
  X(GraphDestroy, (void*))                                          \
  X(GraphExecDestroy, (void*))                                      \
  X(ThreadExchangeStreamCaptureMode, (int*))                        \
  X(EventCreate, (void**))                                          \
  X(EventCreateWithFlags, (void**, unsigned))                       \
  X(EventDestroy, (void*))                                          \
  X(EventRecord, (void*, void*))                                    \
  X(EventQuery, (void*))                                            \
  X(EventSynchronize, (void*))                                      \
  X(EventElapsedTime, (float*, void*, void*))                       \
  X(Memcpy, (void*, const void*, size_t, int))                      \
  X(MemcpyAsync, (void*, const void*, size_t, int, void*))          \
  X(Memset, (void*, int, size_t))                                   \
  X(MemsetAsync, (void*, int, size_t, void*))                       \
  X(MemGetInfo, (size_t*, size_t*))                                 \
  X(Malloc, (void**, size_t))                                       \
  X(Free, (void*))                                                  \
  X(HostRegister, (void*, size_t, unsigned))                        \
  X(HostUnregister, (void*))                                        \
  X(LaunchHostFunc, (void*, void (*)(void*), void*))                \
  X(PointerGetAttributes, (hetcomm::emulated::PointerAttributes*, const void*))

#define HETCOMM_EMULATED_JOINED(prefix, name) prefix##name
#define HETCOMM_EMULATED_SYMBOL(prefix, name) HETCOMM_EMULATED_JOINED(prefix, name)
#define HETCOMM_EMULATED_NAME(name) HETCOMM_EMULATED_SYMBOL(HETCOMM_EMULATED_PREFIX, name)

#ifdef HETCOMM_EMULATED_HIP
#define HETCOMM_EMULATED_RUNTIME(X)         \
  HETCOMM_EMULATED_RUNTIME_COMMON(X)        \
  X(HostMalloc, (void**, size_t, unsigned)) \
  X(HostFree, (void*))                      \
  X(GetDevicePropertiesR0600, (void*, int)) \
  X(StreamWaitValue32, (void*, void*, uint32_t, unsigned, uint32_t))
#else
// CUDA 13 renamed cudaGetDeviceProperties_v2 to cudaGetDeviceProperties.
#define HETCOMM_EMULATED_RUNTIME(X)        \
  HETCOMM_EMULATED_RUNTIME_COMMON(X)       \
  X(HostAlloc, (void**, size_t, unsigned)) \
  X(FreeHost, (void*))                     \
  X(GetDeviceProperties, (void*, int))     \
  X(GetDeviceProperties_v2, (void*, int))
// Of the driver: the symbol has no "cuda" before it, and it returns the driver's error.
#define HETCOMM_EMULATED_DRIVER(X) \
  X(cuStreamWaitValue32_v2, (void*, unsigned long long, uint32_t, unsigned))
#endif

namespace hetcomm::emulated {

// Both vendors use the same numbers for these errors, the CUDA driver too.
inline constexpr int success = 0;
inline constexpr int invalid_value = 1;
inline constexpr int out_of_memory = 2;
inline constexpr int not_initialized = 3;
inline constexpr int no_device = 100;
inline constexpr int invalid_device = 101;
inline constexpr int invalid_context = 201;
inline constexpr int invalid_handle = 400;
inline constexpr int illegal_state = 401;
inline constexpr int not_ready = 600;
inline constexpr int illegal_address = 700;
inline constexpr int launch_timeout = 702;
inline constexpr int not_permitted = 800;
inline constexpr int not_supported = 801;
inline constexpr int capture_unsupported = 900;
inline constexpr int capture_invalidated = 901;
inline constexpr int capture_merge = 902;
inline constexpr int capture_unmatched = 903;
inline constexpr int capture_unjoined = 904;
inline constexpr int capture_isolation = 905;
inline constexpr int captured_event = 907;
inline constexpr int capture_wrong_thread = 908;

enum MemoryType { memory_unregistered = 0, memory_host = 1, memory_device = 2 };
enum CopyKind {
  host_to_host = 0,
  host_to_device = 1,
  device_to_host = 2,
  device_to_device = 3,
  copy_default = 4,
};
enum CaptureMode { capture_global = 0, capture_thread_local = 1, capture_relaxed = 2 };
enum CaptureStatus { capture_none = 0, capture_active = 1, capture_broken = 2 };
enum WaitValue { wait_greater_or_equal = 0, wait_equal = 1, wait_and = 2, wait_nor = 3 };

struct PointerAttributes {
  int type;
  int device;
  void* device_pointer;
  void* host_pointer;
#ifdef HETCOMM_EMULATED_HIP
  int managed;
  unsigned flags;
#else
  long reserved[8];  // new in CUDA 13; never written
#endif
};

// The beginning of cudaDeviceProp and hipDeviceProp_tR0600.
struct DeviceProperties {
  char name[256];
  char uuid[16];
  char luid[8];
  unsigned luid_mask;
  size_t global_memory;
};

}  // namespace hetcomm::emulated
