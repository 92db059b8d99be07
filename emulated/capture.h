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
using Preparation = std::function<Operation()>;  // gives what one launch has to do

// What cudaGraph_t and cudaGraphExec_t point to: operations, and which comes after which. A launch
// performs them one at a time, in one of two orders that the recording allows, by turns: work of
// the stream that was captured first or last. So what nobody has ordered shows. Thread-safe; owned
// by the registry and by launches under way.
class Graph {
 public:
  struct Node {
    Preparation prepare;
    std::vector<size_t> after;
    bool origin = false;  // from the stream that was captured, not from one that joined
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

// The recording of a stream and of those that joined it by events. Streams are told apart by their
// addresses. Thread-safe.
class Capture {
 public:
  static std::shared_ptr<Capture> begin(const void* origin, int mode);
  ~Capture();

  bool began_in(const void* stream) const { return stream == origin_; }
  bool may_end_here() const;  // on this thread
  void add(const void* stream, Preparation preparation);
  std::vector<size_t> last(const void* stream);  // what an event of the stream would wait for
  void follow(const void* stream, const std::vector<size_t>& nodes);
  void invalidate();
  bool valid();
  bool ended();
  bool joined();  // whether all that streams have recorded is before the end of the first one
  std::shared_ptr<Graph> end();

  // Whether a call that may wait for streams, or touch them all, is forbidden on this thread by
  // captures under way; those are then invalid.
  static bool forbids();
  static int exchange_mode(int mode);  // of this thread; the one before

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
