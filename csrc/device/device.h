#pragma once

#include <sys/types.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/flag.h"
#include "device/pool.h"
#include "device/runtime.h"

namespace hetcomm {

using Stream = void*;  // cudaStream_t, hipStream_t; null: the default stream
using Event = void*;   // cudaEvent_t, hipEvent_t

// One accelerator as this process uses it: one object per vendor and index, which stays until the
// process ends. Thread-safe. Calls make the device current for the calling thread where it is not,
// and leave it so.
class Device {
 public:
  using Flag = hetcomm::Flag;

  // Throws Error(vendor): what was looked for, what was found, the remedy.
  static std::shared_ptr<Device> open(const std::string& vendor, int index);
  // How many accelerators of this vendor the process sees, at least 1. Throws Error(vendor).
  static int count(const std::string& vendor);

  const Vendor& vendor() const { return *runtime_.vendor; }
  int index() const { return index_; }
  bool emulated() const { return runtime_.emulated; }
  // What its memory is to a transport.
  MemoryKind memory() const { return emulated() ? MemoryKind::host : vendor().memory; }
  bool reached() const { return runtime_.reached; }  // false: not by any transport
  const std::string& describe() const { return description_; }
  const std::string& name() const { return name_; }  // "NVIDIA H200"
  const std::string& bus() const { return bus_; }    // PCI "0000:1b:00.0"; empty if unknown

  // Set-up: these throw Error(vendor).
  Stream make_stream();  // does not wait for the default stream; highest priority
  void destroy(Stream stream);
  Event make_event();  // without timing; from a cache
  void destroy_event(Event event);
  // From pools, whose blocks stay until trim(). Release memory once no stream uses it: the next
  // owner gets it at once.
  void* allocate(size_t bytes);  // memory of the device
  void release(void* memory);
  void* allocate_pinned(size_t bytes);  // host memory that copy engines reach
  void release_pinned(void* memory);
  // Frees idle memory above HETCOMM_POOL_BYTES (default 512M) of either kind. May wait for all that
  // the device has to do, so only where none of it waits for this process: between communicators.
  void trim();

  // Data path: these return Status(vendor).
  Status copy(void* target, const void* source, size_t bytes, Stream stream);  // any direction
  // Makes its context current for the calling thread, for libraries that work in that one.
  Status enter();
  Status record(Event event, Stream stream);
  Status wait(Stream stream, Event event);  // the stream waits, not the caller
  // Whether all work before the event is over, also by a failure, which the status then tells.
  bool passed(Event event, Status& status);
  // Calls a function in the order of the stream, on a thread of the runtime. It must be short, must
  // not call the runtime, and must not wait for other work of streams.
  Status call(Stream stream, void (*function)(void*), void* argument);
  Status make_current() const;            // for the calling thread
  bool holds(const void* pointer) const;  // whether it is memory of this device
  bool capturing(Stream stream) const;    // whether the stream is recorded into a graph

  std::shared_ptr<Flag> make_flag();  // throws Error(vendor)
  // The stream waits until the flag is set, by an operation of the device if waits_on_device(),
  // else by a function on a thread of the runtime, which other calls in streams may have to wait
  // for. Keeps the flag as long as the stream may read it. Not for streams that are recorded.
  Status wait(Stream stream, const std::shared_ptr<Flag>& flag);
  bool waits_on_device() const { return runtime_.StreamWaitValue32 != nullptr; }
  // Whether work behind such a wait sees what a network card wrote into this memory before the flag
  // was set. True where the vendor knows no such distinction.
  bool sees_remote_writes() const {
    return vendor().driver.wait_flush == 0 || wait_flags_ == vendor().driver.wait_flush;
  }

 private:
  struct Passing {  // a flag and what is recorded behind its wait
    Event event;
    std::shared_ptr<Flag> flag;
  };

  Device(const Runtime& runtime, int index);
  Status check(const char* function, int error) const;
  void forget_passed_flags();
  void try_stream_wait();

  Runtime runtime_;
  const int index_;
  const pid_t process_;
  std::string name_, bus_, description_;
  Pool memory_, pinned_;
  std::mutex events_mutex_;
  std::vector<Event> events_;
  std::shared_ptr<FlagWords> words_;
  unsigned wait_flags_ = 0;
  std::mutex passing_mutex_;
  std::deque<Passing> passing_;
};

}  // namespace hetcomm
