#pragma once

#include <memory>
#include <utility>

#include "emulated/call_counts.h"
#include "emulated/device_fault.h"
#include "emulated/registry.h"
#include "emulated/runtime_abi.h"
#include "emulated/settings.h"
#include "emulated/stream.h"

#define EXPORT extern "C" __attribute__((visibility("default")))
#define NAME(name) HETCOMM_EMULATED_NAME(name)
#define X(name, parameters) EXPORT int NAME(name) parameters;
HETCOMM_EMULATED_RUNTIME(X)
#undef X

// The vendor that this library emulates. By this symbol hetcomm recognises an emulated library.
EXPORT const char* hetcomm_emulated_vendor();

namespace hetcomm::emulated {

#ifdef HETCOMM_EMULATED_HIP
inline constexpr bool kLikeHip = true;
#else
inline constexpr bool kLikeHip = false;
#endif

// Shared by all exported functions. All state is the calling thread's.
int current_device();
bool has_context();     // the thread has called SetDevice
int enter();            // the error that forbids every call on this thread, or success
int result(int error);  // keeps an error for GetLastError
// For calls that may wait for all work of the current device: a hostile runtime waits. Returns the
// error of the wait or of the device.
int may_wait(const char* function);

template <typename Function>
int call(Function&& function, std::source_location where = std::source_location::current()) {
  count_call(where);
  int error = enter();
  return result(error == success ? function() : error);
}

// For calls that captures forbid on threads without the relaxed mode.
template <typename Function>
int unsafe_call(Function&& function, std::source_location where = std::source_location::current()) {
  return call([&] { return Capture::forbids() ? capture_unsupported : int{function()}; }, where);
}

template <typename Function>
int on_stream(void* handle, Function&& function,
              std::source_location where = std::source_location::current()) {
  return call(
      [&] {
        std::shared_ptr<Stream> stream = Stream::find(handle, current_device());
        if (stream == nullptr) return invalid_handle;
        return DeviceFault::struck(stream->device()) ? illegal_address : int{function(*stream)};
      },
      where);
}

template <typename Function>
int on_event(void* handle, Function&& function,
             std::source_location where = std::source_location::current()) {
  return call(
      [&] {
        std::shared_ptr<Event> event = registry<Event>().find(handle);
        if (event == nullptr) return invalid_handle;
        return DeviceFault::struck(event->device()) ? illegal_address : int{function(*event)};
      },
      where);
}

}  // namespace hetcomm::emulated
