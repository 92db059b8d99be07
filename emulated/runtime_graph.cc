// Streams that are recorded into graphs, and their launches.
#include "emulated/runtime.h"

using namespace hetcomm::emulated;

int NAME(StreamBeginCapture)(void* handle, int mode) {
  return on_stream(handle, [&](Stream& stream) {
    if (reinterpret_cast<uintptr_t>(handle) <= 1) return capture_unsupported;
    if (mode < capture_global || mode > capture_relaxed) return invalid_value;
    if (stream.capture() != nullptr) return illegal_state;
    stream.capture_into(Capture::begin(&stream, mode));
    return success;
  });
}

int NAME(StreamEndCapture)(void* handle, void** graph) {
  return on_stream(handle, [&](Stream& stream) {
    if (graph == nullptr) return invalid_value;
    *graph = nullptr;
    std::shared_ptr<Capture> capture = stream.capture();
    if (capture == nullptr) return illegal_state;
    if (!capture->began_in(&stream)) return capture_unmatched;
    if (!capture->may_end_here()) return capture_wrong_thread;
    Stream::end_capture(*capture);
    const bool valid = capture->valid(), joined = capture->joined();
    std::shared_ptr<Graph> recorded = capture->end();
    if (!valid) return capture_invalidated;
    if (!joined) return capture_unjoined;
    *graph = registry<Graph>().add(std::move(recorded));
    return success;
  });
}

int NAME(StreamIsCapturing)(void* handle, int* status) {
  return on_stream(handle, [&](Stream& stream) {
    if (status == nullptr) return invalid_value;
    std::shared_ptr<Capture> capture = stream.capture();
    *status = capture == nullptr ? capture_none
              : capture->valid() ? capture_active
                                 : capture_broken;
    return success;
  });
}

int NAME(ThreadExchangeStreamCaptureMode)(int* mode) {
  return call([&] {
    if (mode == nullptr || *mode < capture_global || *mode > capture_relaxed) {
      return invalid_value;
    }
    *mode = Capture::exchange_mode(*mode);
    return success;
  });
}

int NAME(GraphInstantiateWithFlags)(void** executable, void* handle, unsigned long long) {
  return call([&] {
    std::shared_ptr<Graph> graph = registry<Graph>().find(handle);
    if (executable == nullptr || graph == nullptr) return invalid_value;
    *executable = registry<Graph>().add(graph->copy());
    return success;
  });
}

int NAME(GraphLaunch)(void* executable, void* handle) {
  return on_stream(handle, [&](Stream& stream) {
    std::shared_ptr<Graph> graph = registry<Graph>().find(executable);
    if (graph == nullptr) return invalid_value;
    if (stream.capture() != nullptr) return not_supported;
    stream.enqueue("graph", graph->prepare());
    return success;
  });
}

int NAME(GraphDestroy)(void* graph) {
  return call([&] { return registry<Graph>().take(graph) ? success : invalid_value; });
}

int NAME(GraphExecDestroy)(void* executable) { return NAME(GraphDestroy)(executable); }
