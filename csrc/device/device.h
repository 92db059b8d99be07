#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/fork.h"
#include "base/status.h"
#include "device/pool.h"
#include "device/runtime.h"

namespace hetcomm {

using Stream = void*;  // cudaStream_t, hipStream_t; null: the default stream
using Event = void*;   // cudaEvent_t, hipEvent_t

// One accelerator: one object per vendor and index, kept until the process ends. Thread-safe. Calls
// make the device current for the calling thread, and leave it current.
class Device {
 public:
  // Throws Error(vendor) if there is no such device.
  static std::shared_ptr<Device> open(const std::string& vendor, int index);
  // Accelerators of this vendor that the process sees, at least 1. Throws Error(vendor).
  static int count(const std::string& vendor);

  const Vendor& vendor() const { return *runtime_.vendor; }
  int index() const { return index_; }
  bool emulated() const { return runtime_.emulated; }
  // The kind of its memory, for transports.
  MemoryKind memory() const { return emulated() ? MemoryKind::host : vendor().memory; }
  bool reached() const { return runtime_.reached; }  // false: no transport reaches its memory
  const std::string& describe() const { return description_; }
  const std::string& name() const { return name_; }  // "NVIDIA H200"
  const std::string& bus() const { return bus_; }    // PCI "0000:1b:00.0"; empty if unknown

  // Set-up: these throw Error(vendor).
  Stream make_stream();  // does not wait for the default stream; highest priority
  void destroy(Stream stream);
  Event make_event();  // without timing; from a cache, else it may wait for work of the device
  void destroy_event(Event event);
  // Blocks of a pool. Release a block only when no stream uses it: the next owner gets it at once.
  void* allocate(size_t bytes);  // memory of the device
  void release(void* memory);
  void* allocate_pinned(size_t bytes);  // host memory that copy engines reach
  void release_pinned(void* memory);
  // Frees idle memory above HETCOMM_POOL_BYTES (default 512M) of either kind. May wait for all work
  // of the device. So call it only when no work waits for this process: between communicators.
  void trim();

  // Data path: these return Status(vendor).
  Status copy(void* target, const void* source, size_t bytes, Stream stream);  // any direction
  // Makes the device's context current for the calling thread, for libraries that use the context.
  Status enter();
  Status record(Event event, Stream stream);
  Status wait(Stream stream, Event event);  // the stream waits, not the caller
  // Whether all work before the event is over. A failure ends the work too, and sets the status.
  bool passed(Event event, Status& status);
  // Calls a function in stream order, on a thread of the runtime. The function must be short, must
  // not call the runtime, and must not wait for work in streams.
  Status call(Stream stream, void (*function)(void*), void* argument);
  Status make_current() const;            // for the calling thread
  bool holds(const void* pointer) const;  // whether the address is in memory of this device
  bool capturing(Stream stream) const;    // whether the stream is captured into a graph
  // Whether work that the host enqueues after a network card has written to device memory sees
  // what the card wrote.
  bool sees_remote_writes() const;

 private:
  Device(const Runtime& runtime, int index);
  Status check(const char* function, int error) const;

  Runtime runtime_;
  const int index_;
  const ProcessMark mark_;
  std::string name_, bus_, description_;
  Pool memory_, pinned_;
  std::mutex events_mutex_;
  std::vector<Event> events_;
};

}  // namespace hetcomm
