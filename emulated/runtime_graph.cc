// Streams that are recorded into graphs, and their launches.
#include "emulated/runtime.h"

using namespace hetcomm::emulated;

int NAME(StreamBeginCapture)(void* handle, int mode) {
  return on_stream(handle, [&](Stream& stream) {
    if (reinterpret_cast<uintptr_t>(handle) <= 1) return int{capture_unsupported};
    if (mode < capture_global || mode > capture_relaxed) return int{invalid_value};
    if (stream.capture() != nullptr) return int{illegal_state};
    stream.capture_into(Capture::begin(&stream, mode));
    return int{success};
  });
}

int NAME(StreamEndCapture)(void* handle, void** graph) {
  return on_stream(handle, [&](Stream& stream) {
    if (graph == nullptr) return int{invalid_value};
    *graph = nullptr;
    std::shared_ptr<Capture> capture = stream.capture();
    if (capture == nullptr) return int{illegal_state};
    if (!capture->began_in(&stream)) return int{capture_unmatched};
    if (!capture->may_end_here()) return int{capture_wrong_thread};
    Stream::end_capture(*capture);
    const bool valid = capture->valid(), joined = capture->joined();
    std::shared_ptr<Graph> recorded = capture->end();
    if (!valid) return int{capture_invalidated};
    if (!joined) return int{capture_unjoined};
    *graph = registry<Graph>().add(std::move(recorded));
    return int{success};
  });
}

int NAME(StreamIsCapturing)(void* handle, int* status) {
  return on_stream(handle, [&](Stream& stream) {
    if (status == nullptr) return int{invalid_value};
    std::shared_ptr<Capture> capture = stream.capture();
    *status = capture == nullptr ? capture_none
              : capture->valid() ? capture_active
                                 : capture_broken;
    return int{success};
  });
}

int NAME(ThreadExchangeStreamCaptureMode)(int* mode) {
  return call([&] {
    if (mode == nullptr || *mode < capture_global || *mode > capture_relaxed) {
      return int{invalid_value};
    }
    *mode = Capture::exchange_mode(*mode);
    return int{success};
  });
}

int NAME(GraphInstantiateWithFlags)(void** executable, void* handle, unsigned long long) {
  return call([&] {
    std::shared_ptr<Graph> graph = registry<Graph>().find(handle);
    if (executable == nullptr || graph == nullptr) return int{invalid_value};
    *executable = registry<Graph>().add(graph->copy());
    return int{success};
  });
}

int NAME(GraphLaunch)(void* executable, void* handle) {
  return on_stream(handle, [&](Stream& stream) {
    std::shared_ptr<Graph> graph = registry<Graph>().find(executable);
    if (graph == nullptr) return int{invalid_value};
    if (stream.capture() != nullptr) return int{not_supported};
    stream.enqueue(graph->prepare());
    return int{success};
  });
}

int NAME(GraphDestroy)(void* graph) {
  return call([&] { return registry<Graph>().take(graph) ? int{success} : int{invalid_value}; });
}

int NAME(GraphExecDestroy)(void* executable) { return NAME(GraphDestroy)(executable); }
