#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <functional>

// The runtime of an emulated vendor, called as a program of that vendor would. One per process.
// X(name, (parameters)); the symbol is the vendor's prefix and the name.
#define EMULATED_RUNTIME(X)                                         \
  X(GetDeviceCount, (int*))                                         \
  X(SetDevice, (int))                                               \
  X(GetDevice, (int*))                                              \
  X(Malloc, (void**, size_t))                                       \
  X(StreamCreateWithFlags, (void**, unsigned))                      \
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
  X(DeviceSynchronize, ())                                          \
  X(EventCreateWithFlags, (void**, unsigned))                       \
  X(EventDestroy, (void*))                                          \
  X(EventRecord, (void*, void*))                                    \
  X(EventQuery, (void*))                                            \
  X(EventSynchronize, (void*))                                      \
  X(LaunchHostFunc, (void*, void (*)(void*), void*))

namespace emulated_device {

constexpr int kNotReady = 600;

struct Runtime {
#define X(name, parameters) int(*name) parameters = nullptr;
  EMULATED_RUNTIME(X)
#undef X
};

bool opened();
const Runtime& runtime();                 // throws c10::Error unless opened
void check(int error, const char* what);  // throws c10::Error unless 0
bool ready(int error, const char* what);  // false: not ready; throws for other errors
c10::Device current_device();
c10::Stream current_stream();  // of the current device and this thread
void* native(const c10::Stream& stream);
// Calls `function` in the order of the current stream, on a thread of the runtime.
void enqueue(std::function<void()> function);

}  // namespace emulated_device
