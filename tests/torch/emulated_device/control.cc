// Functions of the device for tests, called by ctypes.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <exception>
#include <string>

#include "allocator.h"
#include "runtime.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace emulated_device {

void open(const char* path, const char* prefix);
void register_graphs();
void register_hooks();

EXPORT const char* emulated_device_open(const char* path, const char* prefix) try {
  open(path, prefix);
  return nullptr;
} catch (const std::exception& error) {
  static std::string text;
  text = error.what();
  return text.c_str();
}

EXPORT int emulated_device_count() {
  return c10::impl::getDeviceGuardImpl(c10::DeviceType::PrivateUse1)->deviceCount();
}

// Called once the device type has its name.
EXPORT void emulated_device_register() {
  register_hooks();
  register_graphs();
}

// Lets the current stream stand still for a while.
EXPORT void emulated_device_delay(int milliseconds) {
  enqueue([=] { usleep(static_cast<useconds_t>(milliseconds) * 1000); });
}

// Lets the current stream stand still until the gate is opened.
EXPORT void* emulated_device_gate() {
  auto* gate = new std::atomic<bool>(false);  // stays: the stream reads it at any time
  enqueue([gate] { gate->wait(false); });
  return gate;
}

EXPORT void emulated_device_open_gate(void* gate) {
  static_cast<std::atomic<bool>*>(gate)->store(true);
  static_cast<std::atomic<bool>*>(gate)->notify_all();
}

EXPORT int emulated_device_recorded(const void* data) { return streams_recorded(data); }
EXPORT bool emulated_device_is_free(const void* data) { return is_free(data); }

}  // namespace emulated_device
