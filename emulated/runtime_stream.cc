// Streams, events, host functions, and waits of streams for words in memory.
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "emulated/runtime.h"
#include "emulated/settings.h"

namespace hetcomm::emulated {

namespace {

int make_stream(void** handle, unsigned flags) {
  constexpr unsigned kNonBlocking = 1;
  return call([&] {
    if (handle == nullptr || flags > kNonBlocking) return invalid_value;
    if (int error = may_wait("StreamCreate")) return error;
    *handle = Stream::create(current_device(), flags == kNonBlocking);
    return success;
  });
}

// Whether a call may ask for the progress of the stream. Asking during a capture invalidates it.
bool askable(Stream& stream) {
  std::shared_ptr<Capture> capture = stream.capture();
  if (capture != nullptr) capture->invalidate();
  return capture == nullptr && !Capture::forbids();
}

int make_event(void** handle, std::source_location where = std::source_location::current()) {
  const auto making = [&] {
    if (handle == nullptr) return invalid_value;
    if (int error = may_wait("EventCreate")) return error;
    *handle = registry<Event>().add(std::make_shared<Event>(current_device()));
    return success;
  };
  return call(making, where);
}

// A host function stands for a kernel, which a driver may load at its first launch.
bool first_launch(void (*function)(void*)) {
  static auto* mutex = new std::mutex;
  static auto* launched = new std::set<void (*)(void*)>;
  std::lock_guard lock(*mutex);
  return launched->insert(function).second;
}

bool reached(uint32_t now, uint32_t value, unsigned how) {
  switch (how) {
    case wait_greater_or_equal:
      return static_cast<int32_t>(now - value) >= 0;
    case wait_equal:
      return now == value;
    case wait_and:
      return (now & value) != 0;
    default:
      return ~(now | value) != 0;
  }
}

int wait_value(void* handle, void* address, uint32_t value, unsigned how, uint32_t mask) {
  return on_stream(handle, [&](Stream& stream) {
    if (address == nullptr || how > wait_nor) return invalid_value;
    auto* word = static_cast<uint32_t*>(address);
    stream.enqueue("wait for a value in memory", [=] {
      // The host sets the word with a plain store, which wakes no thread.
      while (!reached(std::atomic_ref(*word).load(std::memory_order_acquire) & mask, value & mask,
                      how)) {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    });
    return success;
  });
}

}  // namespace

}  // namespace hetcomm::emulated

using namespace hetcomm::emulated;

int NAME(StreamCreate)(void** stream) { return make_stream(stream, 0); }
int NAME(StreamCreateWithFlags)(void** stream, unsigned flags) {
  return make_stream(stream, flags);
}
int NAME(StreamCreateWithPriority)(void** stream, unsigned flags, int) {
  return make_stream(stream, flags);
}

int NAME(StreamDestroy)(void* stream) {
  return call([&] {
    if (DeviceFault::struck(current_device())) return illegal_address;
    return Stream::destroy(stream) ? success : invalid_handle;
  });
}

int NAME(StreamSynchronize)(void* handle) {
  return on_stream(handle, [](Stream& stream) {
    if (!askable(stream)) return capture_unsupported;
    return stream.synchronize("StreamSynchronize") ? success : launch_timeout;
  });
}

int NAME(StreamQuery)(void* handle) {
  return on_stream(handle, [](Stream& stream) {
    if (!askable(stream)) return capture_unsupported;
    return stream.idle() ? success : not_ready;
  });
}

int NAME(StreamWaitEvent)(void* handle, void* event_handle, unsigned) {
  return on_stream(handle, [&](Stream& stream) {
    std::shared_ptr<Event> event = registry<Event>().find(event_handle);
    if (event == nullptr) return invalid_handle;
    const Event::Recorded captured = event->captured();
    std::shared_ptr<Capture> into = stream.capture();
    if (captured.capture != nullptr) {
      if (into == nullptr && captured.capture->ended()) return captured_event;
      if (into != nullptr && into != captured.capture) return capture_merge;
      if (into == nullptr) stream.capture_into(captured.capture);
      captured.capture->follow(&stream, captured.nodes);
      return success;
    }
    uint64_t record = event->latest();
    if (into != nullptr && record > 0) {
      into->invalidate();
      return capture_isolation;
    }
    if (into == nullptr)
      stream.enqueue("wait for an event", [event, record] { event->wait(record); });
    return success;
  });
}

int NAME(EventCreate)(void** event) { return make_event(event); }
int NAME(EventCreateWithFlags)(void** event, unsigned) { return make_event(event); }

int NAME(EventDestroy)(void* event) {
  return call([&] {
    if (DeviceFault::struck(current_device())) return illegal_address;
    return registry<Event>().take(event) ? success : invalid_handle;
  });
}

int NAME(EventRecord)(void* event_handle, void* handle) {
  return on_stream(handle, [&](Stream& stream) {
    std::shared_ptr<Event> event = registry<Event>().find(event_handle);
    if (event == nullptr || event->device() != stream.device()) return invalid_handle;
    if (std::shared_ptr<Capture> capture = stream.capture()) {
      event->record_captured({capture, capture->last(&stream)});
      return success;
    }
    uint64_t record = event->record();
    stream.enqueue("record", [event, record] { event->pass(record); });
    return success;
  });
}

int NAME(EventQuery)(void* handle) {
  return on_event(handle, [](Event& event) {
    DeviceFault::query(event.device());
    if (Capture::forbids()) return capture_unsupported;
    if (event.captured().capture != nullptr) return captured_event;
    return event.passed() ? success : not_ready;
  });
}

int NAME(EventSynchronize)(void* handle) {
  return on_event(handle, [](Event& event) {
    if (Capture::forbids()) return capture_unsupported;
    if (event.captured().capture != nullptr) return captured_event;
    return event.synchronize("EventSynchronize") ? success : launch_timeout;
  });
}

int NAME(EventElapsedTime)(float* milliseconds, void* from_handle, void* to_handle) {
  return on_event(from_handle, [&](Event& from) {
    std::shared_ptr<Event> to = registry<Event>().find(to_handle);
    if (to == nullptr) return invalid_handle;
    if (milliseconds == nullptr) return invalid_value;
    if (!from.passed() || !to->passed()) return not_ready;
    *milliseconds = static_cast<float>(Event::milliseconds(from, *to));
    return success;
  });
}

int NAME(LaunchHostFunc)(void* handle, void (*function)(void*), void* argument) {
  return on_stream(handle, [&](Stream& stream) {
    if (function == nullptr) return invalid_value;
    if (first_launch(function)) {
      if (int error = may_wait("LaunchHostFunc")) return error;
    }
    stream.enqueue(kHostFunction, [=] { run_host_function(function, argument); });
    return success;
  });
}

#ifdef HETCOMM_EMULATED_HIP
int NAME(StreamWaitValue32)(void* stream, void* address, uint32_t value, unsigned how,
                            uint32_t mask) {
  return wait_value(stream, address, value, how, mask);
}
#else
#define X(name, parameters) EXPORT int name parameters;
HETCOMM_EMULATED_DRIVER(X)
#undef X

int cuStreamWaitValue32_v2(void* stream, unsigned long long address, uint32_t value, unsigned how) {
  constexpr unsigned kFlush = 1u << 30;  // of remote writes, which need no flush here
  if (!has_context()) return result(invalid_context);
  return wait_value(stream, reinterpret_cast<void*>(address), value, how & ~kFlush, ~0u);
}
#endif
