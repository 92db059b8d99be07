// Recordings of the current stream, as torch.accelerator.Graph makes them.
#include <ATen/core/GraphImplInterface.h>

#include "runtime.h"

namespace emulated_device {

namespace {

class RecordedGraph final : public at::GraphImplInterface {
 public:
  ~RecordedGraph() override { reset(); }

  void capture_begin(at::MempoolId_t, at::GraphCaptureMode mode) override {
    const int native_mode = mode == at::GraphCaptureMode::ThreadLocal ? 1
                            : mode == at::GraphCaptureMode::Relaxed   ? 2
                                                                      : 0;
    check(runtime().StreamBeginCapture(native(current_stream()), native_mode),
          "StreamBeginCapture");
  }
  void capture_end() override {
    check(runtime().StreamEndCapture(native(current_stream()), &graph_), "StreamEndCapture");
    instantiate();
  }
  void instantiate() override {
    check(runtime().GraphInstantiateWithFlags(&executable_, graph_, 0), "GraphInstantiate");
  }
  void replay() override {
    check(runtime().GraphLaunch(executable_, native(current_stream())), "GraphLaunch");
  }
  void reset() override {
    if (executable_ != nullptr) runtime().GraphExecDestroy(executable_);
    if (graph_ != nullptr) runtime().GraphDestroy(graph_);
    executable_ = graph_ = nullptr;
  }
  at::MempoolId_t pool() const override { return {0, 0}; }
  void enable_debug_mode() override {}
  void debug_dump(const std::string&) override {}

 private:
  void* graph_ = nullptr;
  void* executable_ = nullptr;
};

}  // namespace

void register_graphs() {
  at::GraphImplRegistry()->Register(
      c10::DeviceTypeName(c10::DeviceType::PrivateUse1, false),
      [](const at::GraphImplArgs&) { return std::make_unique<RecordedGraph>(); });
}

}  // namespace emulated_device
