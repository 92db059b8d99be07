// The runtime, and torch's interface of a device: current device, streams, events.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "allocator.h"
#include "runtime.h"

namespace emulated_device {

namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr size_t kStreams = 64;  // of a device, handed out in turn

Runtime& table() {
  static Runtime made;
  return made;
}
bool is_open = false;

std::mutex streams_mutex;
std::map<c10::DeviceIndex, std::deque<void*>> streams;  // guarded; stream N has id N + 1
std::map<c10::DeviceIndex, size_t> next_stream;
thread_local std::map<c10::DeviceIndex, c10::StreamId> current;

c10::Stream stream_of(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, device), id);
}

class Here {  // makes a device current during its lifetime
 public:
  explicit Here(c10::DeviceIndex device) {
    check(runtime().GetDevice(&before_), "GetDevice");
    if (device >= 0) check(runtime().SetDevice(device), "SetDevice");
  }
  ~Here() { runtime().SetDevice(before_); }

 private:
  int before_ = 0;
};

c10::DeviceIndex count() {
  int devices = 0;
  if (!is_open || table().GetDeviceCount(&devices) != 0) return 0;
  return static_cast<c10::DeviceIndex>(devices);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device getDevice() const override { return current_device(); }
  void setDevice(c10::Device device) const override {
    check(runtime().SetDevice(device.index()), "SetDevice");
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (is_open) table().SetDevice(device.index());
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    c10::Device before = current_device();
    if (device.index() >= 0 && device != before) setDevice(device);
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return count(); }

  c10::Stream getStream(c10::Device device) const override {
    const auto index = device.index() < 0 ? current_device().index() : device.index();
    const auto found = current.find(index);
    return stream_of(index, found == current.end() ? 0 : found->second);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(device.index(), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    const auto index = device.index() < 0 ? current_device().index() : device.index();
    Here here(index);
    std::lock_guard lock(streams_mutex);
    auto& made = streams[index];
    const size_t turn = next_stream[index]++ % kStreams;
    if (turn == made.size()) {
      made.push_back(nullptr);
      check(runtime().StreamCreateWithFlags(&made.back(), 1), "StreamCreateWithFlags");
    }
    return stream_of(index, static_cast<c10::StreamId>(turn) + 1);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return getStreamFromGlobalPool(device, false);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    current[stream.device_index()] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return native(stream); }
  bool queryStream(const c10::Stream& stream) const override {
    Here here(stream.device_index());
    return ready(runtime().StreamQuery(native(stream)), "StreamQuery");
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    Here here(stream.device_index());
    check(runtime().StreamSynchronize(native(stream)), "StreamSynchronize");
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    Here here(device);
    check(runtime().DeviceSynchronize(), "DeviceSynchronize");
  }
  bool isStreamCapturing(const c10::Stream& stream) const override {
    Here here(stream.device_index());
    int capturing = 0;
    check(runtime().StreamIsCapturing(native(stream), &capturing), "StreamIsCapturing");
    return capturing != 0;
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    Here here(stream.device_index());
    if (*event == nullptr) check(runtime().EventCreateWithFlags(event, 2), "EventCreateWithFlags");
    check(runtime().EventRecord(*event, native(stream)), "EventRecord");
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    Here here(stream.device_index());
    check(runtime().StreamWaitEvent(native(stream), event, 0), "StreamWaitEvent");
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || ready(runtime().EventQuery(event), "EventQuery");
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) check(runtime().EventSynchronize(event), "EventSynchronize");
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (event != nullptr) table().EventDestroy(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    record_on_stream(data.get(), stream);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return is_open; }
  c10::DeviceIndex deviceCount() const override { return count(); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device().index(); }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    check(runtime().SetDevice(device), "SetDevice");
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto before = getCurrentDevice();
    if (device >= 0) setCurrentDevice(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto* changed = storage.unsafeGetStorageImpl();
    c10::DataPtr data = changed->allocator()->allocate(bytes);
    changed->allocator()->copy_data(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
    changed->set_data_ptr(std::move(data));
    changed->set_nbytes(bytes);
  }
};

}  // namespace

bool opened() { return is_open; }

const Runtime& runtime() {
  TORCH_CHECK(is_open, "expected a rank of an emulated vendor; this one has no device");
  return table();
}

void check(int error, const char* what) { TORCH_CHECK(error == 0, what, ": error ", error); }

bool ready(int error, const char* what) {
  if (error == kNotReady) return false;
  check(error, what);
  return true;
}

c10::Device current_device() {
  int device = 0;
  check(runtime().GetDevice(&device), "GetDevice");
  return c10::Device(kType, static_cast<c10::DeviceIndex>(device));
}

c10::Stream current_stream() { return Guard().getStream(current_device()); }

void* native(const c10::Stream& stream) {
  if (stream.id() == 0) return nullptr;
  std::lock_guard lock(streams_mutex);
  return streams[stream.device_index()].at(static_cast<size_t>(stream.id()) - 1);
}

void enqueue(std::function<void()> function) {
  auto kept = std::make_unique<std::function<void()>>(std::move(function));
  const c10::Stream stream = current_stream();
  if (Guard().isStreamCapturing(stream)) {  // called at every launch, so it stays
    auto call = [](void* argument) { (*static_cast<std::function<void()>*>(argument))(); };
    check(runtime().LaunchHostFunc(native(stream), call, kept.release()), "LaunchHostFunc");
    return;
  }
  auto call = [](void* argument) {
    (*std::unique_ptr<std::function<void()>>(static_cast<std::function<void()>*>(argument)))();
  };
  check(runtime().LaunchHostFunc(native(stream), call, kept.get()), "LaunchHostFunc");
  kept.release();
}

void open(const char* path, const char* prefix) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(library != nullptr, dlerror());
#define X(name, parameters)                                                                       \
  table().name =                                                                                  \
      reinterpret_cast<int(*) parameters>(dlsym(library, (std::string(prefix) + #name).c_str())); \
  TORCH_CHECK(table().name != nullptr, path, " has no ", prefix, #name);
  HETCOMM_EMULATED_RUNTIME_COMMON(X)
#undef X
  is_open = true;
}

void register_hooks() { at::RegisterPrivateUse1HooksInterface(new Hooks); }

}  // namespace emulated_device
