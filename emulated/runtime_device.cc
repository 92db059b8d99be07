// Devices, versions and errors.
#include <cstdio>
#include <cstring>
#include <mutex>

#include "base/fork.h"
#include "base/text.h"
#include "emulated/runtime.h"
#include "emulated/settings.h"

namespace hetcomm::emulated {

namespace {

thread_local int device = 0;
thread_local bool chosen = false;  // the thread has a current context, which the driver needs
thread_local int last_error = success;

int set(int* target, int value, std::source_location where = std::source_location::current()) {
  const auto setting = [&] {
    if (target == nullptr) return invalid_value;
    *target = value;
    return success;
  };
  return call(setting, where);
}

bool known(int index) { return index >= 0 && index < settings().devices; }

int describe(void* properties, int index) {
  return call([&] {
    if (properties == nullptr) return invalid_value;
    if (!known(index)) return invalid_device;
    auto* described = static_cast<DeviceProperties*>(properties);
    *described = {};
    std::string maker = HETCOMM_EMULATED_VENDOR;
    for (char& letter : maker) letter = to_upper(letter);
    std::snprintf(described->name, sizeof described->name, "Emulated %s GPU", maker.c_str());
    std::memcpy(described->uuid, "hetcomm emulated", sizeof described->uuid);
    described->uuid[0] = static_cast<char>(index);
    described->global_memory = size_t{16} << 30;
    return success;
  });
}

// X(code, text)
#define ERRORS(X)                                                          \
  X(success, "no error")                                                   \
  X(invalid_value, "invalid argument")                                     \
  X(out_of_memory, "out of memory")                                        \
  X(not_initialized, "the runtime is not usable in this process")          \
  X(no_device, "there is no device")                                       \
  X(invalid_device, "invalid device ordinal")                              \
  X(invalid_context, "this thread has no current device")                  \
  X(invalid_handle, "unknown stream or event")                             \
  X(illegal_state, "the stream is captured already, or not at all")        \
  X(not_ready, "not ready")                                                \
  X(illegal_address, "the device met an illegal address")                  \
  X(launch_timeout, "the device's work did not end within the bound")      \
  X(not_permitted, "the runtime must not be called from a host function")  \
  X(not_supported, "not supported")                                        \
  X(capture_unsupported, "not permitted while a stream is captured")       \
  X(capture_invalidated, "the capture failed by an earlier error")         \
  X(capture_merge, "two captures would become one")                        \
  X(capture_unmatched, "the capture began in another stream")              \
  X(capture_unjoined, "a stream that joined the capture has not returned") \
  X(capture_isolation, "a captured stream would wait for uncaptured work") \
  X(captured_event, "the event was last recorded in a captured stream")    \
  X(capture_wrong_thread, "the capture began on another thread")

}  // namespace

int current_device() { return device; }

bool has_context() { return chosen; }

int enter() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (!unusable().empty()) {
      std::fprintf(stderr, "hetcomm emulated %s: %s\n", hetcomm_emulated_vendor(),
                   unusable().c_str());
    }
  });
  if (!unusable().empty()) return not_initialized;
  if (in_host_function()) return kLikeHip ? not_supported : not_permitted;
  if (settings().devices == 0) return no_device;
  // A child cannot use a runtime that its parent has initialised, as with the vendors' runtimes.
  static const ProcessMark first_use;
  return first_use.inherited() ? not_initialized : success;
}

int result(int error) {
  if (error != success && error != not_ready) last_error = error;
  return error;
}

int may_wait(const char* function) {
  if (DeviceFault::struck(device)) return illegal_address;
  const Hostile& hostile = settings().hostile;
  if (!hostile.sync || Stream::synchronize_device(device, function, hostile.gates)) return success;
  return DeviceFault::struck(device) ? illegal_address : launch_timeout;
}

}  // namespace hetcomm::emulated

using namespace hetcomm::emulated;

EXPORT const char* hetcomm_emulated_vendor() { return HETCOMM_EMULATED_VENDOR; }

// Whether transports reach the devices' memory, as RDMA NICs and other processes may reach a GPU's.
EXPORT int hetcomm_emulated_direct() { return settings().direct ? 1 : 0; }

EXPORT const char* NAME(GetErrorString)(int error) {
#define X(number, text) \
  if (error == number) return text;
  ERRORS(X)
#undef X
  return "unknown error";
}

EXPORT const char* NAME(GetErrorName)(int error) {
#define X(number, text) \
  if (error == number) return #number;
  ERRORS(X)
#undef X
  return "unknown_error";
}

int NAME(GetDeviceCount)(int* count) { return set(count, settings().devices); }

int NAME(SetDevice)(int index) {
  return call([&] {
    if (!known(index)) return invalid_device;
    device = index;
    chosen = true;
    return success;
  });
}

int NAME(GetDevice)(int* index) { return set(index, device); }

int NAME(RuntimeGetVersion)(int* version) {
  bool old = settings().injects(FaultKind::old_runtime);
  return set(version, old ? HETCOMM_EMULATED_OLD_VERSION : HETCOMM_EMULATED_VERSION);
}

int NAME(DriverGetVersion)(int* version) { return NAME(RuntimeGetVersion)(version); }

int NAME(GetLastError)() {
  int error = last_error;
  last_error = success;
  return error;
}

int NAME(PeekAtLastError)() { return last_error; }

int NAME(DeviceSynchronize)() {
  return unsafe_call([] {
    if (DeviceFault::struck(device)) return illegal_address;
    return Stream::synchronize_device(device, "DeviceSynchronize") ? success : launch_timeout;
  });
}

int NAME(DeviceGetPCIBusId)(char* text, int length, int index) {
  return call([&] {
    if (text == nullptr || length < 13) return invalid_value;
    if (!known(index)) return invalid_device;
    std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", 0x10 + index);
    return success;
  });
}

// The attributes of a device without abilities.
int NAME(DeviceGetAttribute)(int* value, int attribute, int index) {
  return call([&] {
    if (value == nullptr || attribute <= 0) return invalid_value;
    if (!known(index)) return invalid_device;
    *value = 0;
    return success;
  });
}

int NAME(DeviceGetStreamPriorityRange)(int* least, int* greatest) {
  return call([&] {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return success;
  });
}

#ifdef HETCOMM_EMULATED_HIP
int NAME(GetDevicePropertiesR0600)(void* properties, int index) {
  return describe(properties, index);
}
#else
int NAME(GetDeviceProperties)(void* properties, int index) { return describe(properties, index); }
int NAME(GetDeviceProperties_v2)(void* properties, int index) {
  return describe(properties, index);
}
#endif
