#include "device/device.h"

#include <algorithm>
#include <map>

#include "base/config.h"
#include "base/log.h"
#include "base/text.h"

namespace hetcomm {
namespace {

constexpr int64_t kPoolBytes = int64_t{512} << 20;
constexpr size_t kPropertiesBytes = 16384;  // the vendors' structures have 1 to 2 KiB

// The result of PointerGetAttributes; CUDA's is larger than HIP's.
struct PointerAttributes {
  int type;
  int device;
  void* device_pointer;
  void* host_pointer;
  long reserved[8];
};

const Runtime& runtime_of(const std::string& vendor) {
  if (const Vendor* row = find_vendor(vendor)) return load_runtime(*row);
  throw Error(Code::vendor, "expected a vendor with device memory (" + vendor_names(", ") +
                                "); got \"" + vendor +
                                "\", which is served in host memory; correct "
                                "HETCOMM_VENDOR");
}

int64_t most_kept() { return setting("HETCOMM_POOL_BYTES", kPoolBytes, 0, INT64_MAX); }

}  // namespace

std::shared_ptr<Device> Device::open(const std::string& vendor, int index) {
  const Runtime& runtime = runtime_of(vendor);
  const int count = count_devices(runtime);
  if (index < 0 || index >= count) {
    const auto visible = environment_variable(runtime.vendor->visible_variable);
    throw Error(Code::vendor, "expected the index of a device below " + std::to_string(count) +
                                  ", which is how many " + vendor + " devices this process sees (" +
                                  runtime.vendor->visible_variable +
                                  (visible ? "=\"" + *visible + "\"" : " is not set") + "); got " +
                                  std::to_string(index) +
                                  "; correct HETCOMM_DEVICE or show it more devices");
  }
  static std::mutex mutex;
  // Never destroyed: the runtime may be gone before static destructors run.
  static auto* devices = new std::map<std::pair<std::string, int>, std::shared_ptr<Device>>;
  std::lock_guard lock(mutex);
  auto& device = (*devices)[{vendor, index}];
  if (!device) device.reset(new Device(runtime, index));
  return device;
}

int Device::count(const std::string& vendor) { return count_devices(runtime_of(vendor)); }

Device::Device(const Runtime& runtime, int index)
    : runtime_(runtime),
      index_(index),
      memory_(
          [this](size_t bytes) {
            OutsideCapture outside(runtime_);
            void* block = nullptr;
            hetcomm::check(make_current());
            hetcomm::check(check("Malloc", runtime_.Malloc(&block, bytes)));
            return block;
          },
          [this](void* block) {
            OutsideCapture outside(runtime_);
            check("Free", runtime_.Free(block));
          },
          most_kept()),
      pinned_(
          [this](size_t bytes) {
            OutsideCapture outside(runtime_);
            void* block = nullptr;
            hetcomm::check(make_current());
            hetcomm::check(
                check("HostAlloc", runtime_.HostAlloc(&block, bytes, kHostPortable | kHostMapped)));
            return block;
          },
          [this](void* block) {
            OutsideCapture outside(runtime_);
            check("FreeHost", runtime_.FreeHost(block));
          },
          most_kept()) {
  const std::string who = vendor().name + std::string(" GPU ") + std::to_string(index);
  description_ = (emulated() ? "emulated " : "") + who;
  hetcomm::check(make_current());
  std::vector<char> properties(kPropertiesBytes);
  hetcomm::check(
      check("GetDeviceProperties", runtime_.GetDeviceProperties(properties.data(), index)));
  properties[255] = '\0';
  name_ = properties.data();
  char bus[32] = "";
  if (runtime_.DeviceGetPCIBusId(bus, sizeof bus, index) == kSuccess) {
    bus_ = bus;
    std::transform(bus_.begin(), bus_.end(), bus_.begin(), to_lower);  // as in sysfs
  } else {
    runtime_.GetLastError();
  }
  description_ += ": " + name_ + ", " + runtime_.version + " (" + runtime_.path + ")";
}

Status Device::check(const char* function, int error) const {
  if (error == kSuccess) return {};
  return Status(Code::vendor,
                description_ + ": " + runtime_.failure(vendor().symbols(function).front(), error));
}

// Asks each time, because other libraries, such as torch, change the current device too.
Status Device::make_current() const {
  int current = -1;
  if (runtime_.GetDevice(&current) == kSuccess && current == index_) return {};
  return check("SetDevice", runtime_.SetDevice(index_));
}

Status Device::enter() {
  thread_local const Device* entered = nullptr;
  if (entered == this) return make_current();
  entered = this;  // a runtime makes the context current at a thread's first call
  return check("SetDevice", runtime_.SetDevice(index_));
}

Stream Device::make_stream() {
  OutsideCapture outside(runtime_);
  Stream stream = nullptr;
  hetcomm::check(make_current());
  hetcomm::check(
      check("StreamCreateWithPriority",
            runtime_.StreamCreateWithPriority(&stream, kStreamNonBlocking, kHighestPriority)));
  return stream;
}

void Device::destroy(Stream stream) {
  if (mark_.inherited()) return;  // a forked child has none of the runtime's threads
  OutsideCapture outside(runtime_);
  // After an error of the device every call fails, and a destructor can do no more.
  const Status status = check("StreamDestroy", runtime_.StreamDestroy(stream));
  if (!status.ok()) log(LogLevel::debug, status.text());
}

Event Device::make_event() {
  {
    std::lock_guard lock(events_mutex_);
    if (!events_.empty()) {
      Event event = events_.back();
      events_.pop_back();
      return event;
    }
  }
  OutsideCapture outside(runtime_);
  Event event = nullptr;
  hetcomm::check(make_current());
  hetcomm::check(
      check("EventCreateWithFlags", runtime_.EventCreateWithFlags(&event, kEventWithoutTiming)));
  return event;
}

void Device::destroy_event(Event event) {
  std::lock_guard lock(events_mutex_);
  events_.push_back(event);
}

void* Device::allocate(size_t bytes) { return memory_.take(bytes); }
void Device::release(void* memory) { memory_.give(memory); }
void* Device::allocate_pinned(size_t bytes) { return pinned_.take(bytes); }
void Device::release_pinned(void* memory) { pinned_.give(memory); }

void Device::trim() {
  if (mark_.inherited()) return;  // a forked child must not touch the runtime
  memory_.trim();
  pinned_.trim();
}

Status Device::copy(void* target, const void* source, size_t bytes, Stream stream) {
  if (bytes == 0) return {};
  if (Status status = make_current(); !status) return status;
  return check("MemcpyAsync", runtime_.MemcpyAsync(target, source, bytes, kCopyAny, stream));
}

Status Device::record(Event event, Stream stream) {
  if (Status status = make_current(); !status) return status;
  return check("EventRecord", runtime_.EventRecord(event, stream));
}

Status Device::wait(Stream stream, Event event) {
  if (Status status = make_current(); !status) return status;
  return check("StreamWaitEvent", runtime_.StreamWaitEvent(stream, event, 0));
}

bool Device::passed(Event event, Status& status) {
  OutsideCapture outside(runtime_);
  if (status = make_current(); !status) return true;
  int error = runtime_.EventQuery(event);
  if (error == kNotReady) {
    runtime_.GetLastError();  // clears the error for other libraries
    return false;
  }
  status = check("EventQuery", error);
  return true;
}

Status Device::call(Stream stream, void (*function)(void*), void* argument) {
  if (Status status = make_current(); !status) return status;
  return check("LaunchHostFunc", runtime_.LaunchHostFunc(stream, function, argument));
}

bool Device::holds(const void* pointer) const {
  PointerAttributes attributes{};
  if (!make_current()) return false;
  if (runtime_.PointerGetAttributes(&attributes, pointer) != kSuccess) {
    runtime_.GetLastError();  // HIP's answer to ordinary host memory
    return false;
  }
  return (attributes.type == kMemoryDevice || attributes.type == kMemoryManaged) &&
         attributes.device == index_;
}

bool Device::capturing(Stream stream) const {
  int capture = 0;
  if (!make_current()) return false;
  int error = runtime_.StreamIsCapturing(stream, &capture);
  if (error != kSuccess) runtime_.GetLastError();
  return error == kCaptureImplicit || (error == kSuccess && capture != 0);
}

bool Device::sees_remote_writes() const {
  if (vendor().driver.remote_writes == 0 || emulated()) return true;
  int scope = 0;
  if (runtime_.DeviceGetAttribute(&scope, vendor().driver.remote_writes, index_) != kSuccess) {
    runtime_.GetLastError();
    return false;
  }
  return scope >= kSeenByOwner;
}

}  // namespace hetcomm
