#pragma once

#include <memory>
#include <utility>

#include "emulated/registry.h"
#include "emulated/runtime_abi.h"
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
int enter();            // the error that forbids every call on this thread, or success
int result(int error);  // keeps an error for GetLastError

template <typename Function>
int call(Function&& function) {
  int error = enter();
  return result(error == success ? function() : error);
}

// For calls that captures forbid on threads without the relaxed mode.
template <typename Function>
int unsafe_call(Function&& function) {
  return call([&] { return Capture::forbids() ? capture_unsupported : int{function()}; });
}

template <typename Function>
int on_stream(void* handle, Function&& function) {
  return call([&] {
    std::shared_ptr<Stream> stream = Stream::find(handle, current_device());
    return stream == nullptr ? invalid_handle : function(*stream);
  });
}

template <typename Function>
int on_event(void* handle, Function&& function) {
  return call([&] {
    std::shared_ptr<Event> event = registry<Event>().find(handle);
    return event == nullptr ? invalid_handle : function(*event);
  });
}

}  // namespace hetcomm::emulated
