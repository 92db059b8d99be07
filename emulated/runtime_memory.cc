// Memory and copies.
#include <cstring>

#include "emulated/memory.h"
#include "emulated/runtime.h"

namespace hetcomm::emulated {

namespace {

bool pinned(const void* pointer) {
  Block block;
  return find(pointer, block) && block.pinned;
}

void copy(void* target, const void* source, size_t bytes, int kind, int on) {
  bool from_host = kind == host_to_device || kind == host_to_host;
  bool to_host = kind == device_to_host || kind == host_to_host;
  if (kind == copy_default) from_host = pinned(source), to_host = pinned(target);
  if (from_host == to_host) {
    std::memmove(target, source, bytes);
  } else {
    copy_engine(on, from_host ? Direction::to_device : Direction::to_host)
        .copy(target, source, bytes);
  }
}

int copy_on(Stream& stream, void* target, const void* source, size_t bytes, int kind) {
  if (kind < host_to_host || kind > copy_default) return invalid_value;
  if (bytes > 0 && (target == nullptr || source == nullptr)) return invalid_value;
  stream.enqueue("copy", [=, on = stream.device()] {
    poison_target(target, bytes, source, bytes);
    copy(target, source, bytes, kind, on);
  });
  return success;
}

int fill_on(Stream& stream, void* target, int value, size_t bytes) {
  if (bytes > 0 && target == nullptr) return invalid_value;
  stream.enqueue("fill", [=] { std::memset(target, value, bytes); });
  return success;
}

// Runs enqueue(stream) in the default stream, and waits for the operation.
template <typename Enqueue>
int synchronous(const char* name, Enqueue&& enqueue) {
  return on_stream(nullptr, [&](Stream& stream) {
    if (Capture::forbids()) return capture_unsupported;
    if (int error = enqueue(stream); error != success) return error;
    return stream.synchronize(name) ? success : launch_timeout;
  });
}

int free_block(void* pointer, bool is_pinned) {
  return unsafe_call([&] {
    if (pointer == nullptr) return success;
    Block block;
    if (!find(pointer, block)) return invalid_value;
    if (DeviceFault::struck(block.device)) return illegal_address;
    // As the vendors' do.
    if (!Stream::synchronize_device(block.device, is_pinned ? "FreeHost" : "Free")) {
      return launch_timeout;
    }
    return release(pointer, is_pinned) ? success : invalid_value;
  });
}

int make_block(void** pointer, size_t bytes, bool is_pinned) {
  return unsafe_call([&] {
    if (pointer == nullptr) return invalid_value;
    if (int error = may_wait(is_pinned ? "HostAlloc" : "Malloc")) return error;
    *pointer = bytes == 0 ? nullptr : allocate(bytes, current_device(), is_pinned);
    return bytes > 0 && *pointer == nullptr ? out_of_memory : success;
  });
}

}  // namespace

}  // namespace hetcomm::emulated

using namespace hetcomm::emulated;

int NAME(Memcpy)(void* target, const void* source, size_t bytes, int kind) {
  return synchronous("Memcpy",
                     [&](Stream& stream) { return copy_on(stream, target, source, bytes, kind); });
}

int NAME(MemcpyAsync)(void* target, const void* source, size_t bytes, int kind, void* handle) {
  return on_stream(handle,
                   [&](Stream& stream) { return copy_on(stream, target, source, bytes, kind); });
}

int NAME(Memset)(void* target, int value, size_t bytes) {
  return synchronous("Memset",
                     [&](Stream& stream) { return fill_on(stream, target, value, bytes); });
}

int NAME(MemsetAsync)(void* target, int value, size_t bytes, void* handle) {
  return on_stream(handle, [&](Stream& stream) { return fill_on(stream, target, value, bytes); });
}

int NAME(MemGetInfo)(size_t* available, size_t* total) {
  return call([&] {
    if (available == nullptr || total == nullptr) return invalid_value;
    *available = *total = size_t{16} << 30;
    return success;
  });
}

int NAME(Malloc)(void** pointer, size_t bytes) { return make_block(pointer, bytes, false); }
int NAME(Free)(void* pointer) { return free_block(pointer, false); }

int NAME(HostRegister)(void* pointer, size_t bytes, unsigned) {
  return unsafe_call([&] {
    if (int error = may_wait("HostRegister")) return error;
    return register_pinned(pointer, bytes, current_device()) ? success : invalid_value;
  });
}

int NAME(HostUnregister)(void* pointer) {
  return unsafe_call([&] {
    if (int error = may_wait("HostUnregister")) return error;
    return unregister_pinned(pointer) ? success : invalid_value;
  });
}

int NAME(PointerGetAttributes)(PointerAttributes* attributes, const void* pointer) {
  return call([&] {
    if (attributes == nullptr || pointer == nullptr) return invalid_value;
    Block block;
    bool found = find(pointer, block);
    attributes->type = found && block.pinned ? memory_host : memory_device;
    attributes->device = found ? block.device : current_device();
    attributes->device_pointer = attributes->host_pointer = const_cast<void*>(pointer);
    if (attributes->type == memory_device) attributes->host_pointer = nullptr;
    return success;
  });
}

#ifdef HETCOMM_EMULATED_HIP
int NAME(HostMalloc)(void** pointer, size_t bytes, unsigned) {
  return make_block(pointer, bytes, true);
}
int NAME(HostFree)(void* pointer) { return free_block(pointer, true); }
#else
int NAME(HostAlloc)(void** pointer, size_t bytes, unsigned) {
  return make_block(pointer, bytes, true);
}
int NAME(FreeHost)(void* pointer) { return free_block(pointer, true); }
#endif
