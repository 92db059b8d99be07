#include "allocator.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "runtime.h"

namespace emulated_device {

namespace {

constexpr size_t kSmallest = 512;

struct Block {
  void* data;
  size_t bytes;
  c10::Stream stream;  // the one that was current when it was allocated
  bool taken = true;
  bool captured = false;              // belongs to a graph: given away while that is recorded only
  std::vector<c10::Stream> recorded;  // others that use it
  std::vector<void*> awaited;         // events on those, once it is freed
};

std::mutex mutex;
std::map<const void*, Block>& blocks() {  // guarded; never destroyed
  static auto* all = new std::map<const void*, Block>;
  return *all;
}

bool passed(Block& block) {
  int relaxed = 2;  // asking must not disturb a recording of some stream
  runtime().ThreadExchangeStreamCaptureMode(&relaxed);
  std::erase_if(block.awaited, [](void* event) {
    if (!ready(runtime().EventQuery(event), "EventQuery")) return false;
    runtime().EventDestroy(event);
    return true;
  });
  runtime().ThreadExchangeStreamCaptureMode(&relaxed);
  return block.awaited.empty();
}

bool available(Block& block, bool captured = false) {
  return !block.taken && block.captured == captured && passed(block);
}

bool capturing(const c10::Stream& stream) {
  int status = 0;
  check(runtime().StreamIsCapturing(native(stream), &status), "StreamIsCapturing");
  return status != 0;
}

void give_back(void* data) {
  std::lock_guard lock(mutex);
  Block& block = blocks().at(data);
  // What a graph uses in several streams stays its own.
  if (std::any_of(block.recorded.begin(), block.recorded.end(), capturing)) return;
  block.taken = false;
  const c10::OptionalDeviceGuard guard(block.stream.device());  // any thread may free
  for (const c10::Stream& stream : block.recorded) {
    void* event = nullptr;
    check(runtime().EventCreateWithFlags(&event, 2), "EventCreateWithFlags");
    check(runtime().EventRecord(event, native(stream)), "EventRecord");
    block.awaited.push_back(event);
  }
}

struct CachingAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Stream stream = current_stream();
    if (bytes == 0) return c10::DataPtr(nullptr, nullptr, &give_back, stream.device());
    const size_t rounded = std::bit_ceil(std::max(bytes, kSmallest));
    const bool captured = capturing(stream);
    std::lock_guard lock(mutex);
    for (auto& [data, block] : blocks()) {
      if (block.bytes != rounded || block.stream != stream) continue;
      if (!available(block, captured)) continue;
      block.taken = true;
      block.recorded.clear();
      return c10::DataPtr(block.data, block.data, &give_back, stream.device());
    }
    void* data = nullptr;
    int mode = 2;
    runtime().ThreadExchangeStreamCaptureMode(&mode);
    check(runtime().Malloc(&data, rounded), "Malloc");
    runtime().ThreadExchangeStreamCaptureMode(&mode);
    blocks().insert({data, Block{data, rounded, stream, true, captured, {}, {}}});
    return c10::DataPtr(data, data, &give_back, stream.device());
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    enqueue([=] { std::memcpy(target, source, bytes); });
  }
};

CachingAllocator allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator);

Block& block_at(const void* data) {
  const auto found = blocks().find(data);
  TORCH_CHECK(found != blocks().end(), "no block begins at ", data);
  return found->second;
}

}  // namespace

void record_on_stream(const void* data, const c10::Stream& stream) {
  if (data == nullptr) return;
  std::lock_guard lock(mutex);
  Block& block = block_at(data);
  if (block.stream != stream) block.recorded.push_back(stream);
}

int streams_recorded(const void* data) {
  std::lock_guard lock(mutex);
  return static_cast<int>(block_at(data).recorded.size());
}

bool is_free(const void* data) {
  std::lock_guard lock(mutex);
  return available(block_at(data));
}

}  // namespace emulated_device
