#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace hetcomm::emulated {

using Operation = std::function<void()>;         // throws nothing
using Preparation = std::function<Operation()>;  // makes the operation of one launch

// The object behind cudaGraph_t and cudaGraphExec_t: operations and their order. A launch performs
// the operations one at a time. Launches alternate between two orders that the recording allows:
// the work of the captured stream as early or as late as possible. So missing dependencies show.
// Thread-safe. Owned by the registry and by launches under way.
class Graph {
 public:
  struct Node {
    Preparation prepare;
    std::vector<size_t> after;
    bool origin = false;  // from the captured stream, not from a stream that joined the capture
  };
  explicit Graph(std::vector<Node> nodes) : nodes_(std::move(nodes)) {}

  std::shared_ptr<Graph> copy() const { return std::make_shared<Graph>(nodes_); }

  Operation prepare();  // for the next launch

 private:
  std::vector<size_t> order(bool origin_first) const;

  const std::vector<Node> nodes_;
  std::mutex mutex_;
  uint64_t launches_ = 0;
};

// The recording of a stream and of streams that joined the capture by events. A stream is named by
// its address. Thread-safe.
class Capture {
 public:
  static std::shared_ptr<Capture> begin(const void* origin, int mode);
  ~Capture();

  bool began_in(const void* stream) const { return stream == origin_; }
  bool may_end_here() const;  // on this thread
  void add(const void* stream, Preparation preparation);
  std::vector<size_t> last(const void* stream);  // nodes that an event of the stream waits for
  void follow(const void* stream, const std::vector<size_t>& nodes);
  void invalidate();
  bool valid();
  bool ended();
  bool joined();  // whether the end of the captured stream comes after all recorded nodes
  std::shared_ptr<Graph> end();

  // Whether captures forbid calls on this thread that may wait for streams, or touch all streams.
  // Such a call invalidates these captures.
  static bool forbids();
  static int exchange_mode(int mode);  // of this thread; returns the previous mode

 private:
  Capture(const void* origin, int mode) : origin_(origin), mode_(mode) {}

  const void* const origin_;
  const int mode_;
  const std::thread::id thread_ = std::this_thread::get_id();
  std::mutex mutex_;
  bool valid_ = true;
  bool ended_ = false;
  std::vector<Graph::Node> nodes_;
  std::map<const void*, std::vector<size_t>> last_;
};

}  // namespace hetcomm::emulated
