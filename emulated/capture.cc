#include "emulated/capture.h"

#include <algorithm>
#include <set>
#include <utility>

#include "emulated/runtime_abi.h"

namespace hetcomm::emulated {

namespace {

struct Captures {
  std::mutex mutex;
  std::set<Capture*> all;
};

// Never destroyed: threads of streams may outlive static objects.
Captures& captures() {
  static auto* captures = new Captures;
  return *captures;
}

thread_local int thread_mode = capture_global;

}  // namespace

std::vector<size_t> Graph::order(bool origin_first) const {
  std::vector<size_t> done;
  std::vector<bool> placed(nodes_.size());
  auto ready = [&](size_t node) {
    return !placed[node] && std::all_of(nodes_[node].after.begin(), nodes_[node].after.end(),
                                        [&](size_t before) { return placed[before]; });
  };
  while (done.size() < nodes_.size()) {
    size_t next = nodes_.size();
    for (size_t node = 0; node < nodes_.size(); ++node) {
      if (!ready(node)) continue;
      if (next == nodes_.size()) next = node;
      if (nodes_[node].origin != origin_first) continue;
      next = node;
      break;
    }
    placed[next] = true;
    done.push_back(next);
  }
  return done;
}

Operation Graph::prepare() {
  bool origin_first = false;
  {
    std::lock_guard lock(mutex_);
    origin_first = launches_++ % 2 == 0;
  }
  std::vector<Operation> operations;
  for (size_t node : order(origin_first)) operations.push_back(nodes_[node].prepare());
  return [operations = std::move(operations)] {
    for (const Operation& operation : operations) operation();
  };
}

std::shared_ptr<Capture> Capture::begin(const void* origin, int mode) {
  std::shared_ptr<Capture> capture(new Capture(origin, mode));
  capture->last_[origin];
  std::lock_guard lock(captures().mutex);
  captures().all.insert(capture.get());
  return capture;
}

Capture::~Capture() {
  std::lock_guard lock(captures().mutex);
  captures().all.erase(this);
}

bool Capture::may_end_here() const {
  return mode_ == capture_relaxed || thread_ == std::this_thread::get_id();
}

void Capture::add(const void* stream, Preparation preparation) {
  std::lock_guard lock(mutex_);
  nodes_.push_back({std::move(preparation), last_[stream], stream == origin_});
  last_[stream] = {nodes_.size() - 1};
}

std::vector<size_t> Capture::last(const void* stream) {
  std::lock_guard lock(mutex_);
  return last_[stream];
}

void Capture::follow(const void* stream, const std::vector<size_t>& nodes) {
  std::lock_guard lock(mutex_);
  std::vector<size_t>& last = last_[stream];
  last.insert(last.end(), nodes.begin(), nodes.end());
}

void Capture::invalidate() {
  std::lock_guard lock(mutex_);
  valid_ = false;
}

bool Capture::valid() {
  std::lock_guard lock(mutex_);
  return valid_;
}

bool Capture::ended() {
  std::lock_guard lock(mutex_);
  return ended_;
}

bool Capture::joined() {
  std::lock_guard lock(mutex_);
  std::vector<bool> before(nodes_.size());
  std::vector<size_t> open = last_[origin_];
  while (!open.empty()) {
    const size_t node = open.back();
    open.pop_back();
    if (before[node]) continue;
    before[node] = true;
    open.insert(open.end(), nodes_[node].after.begin(), nodes_[node].after.end());
  }
  return std::all_of(before.begin(), before.end(), [](bool each) { return each; });
}

std::shared_ptr<Graph> Capture::end() {
  {
    std::lock_guard lock(captures().mutex);
    captures().all.erase(this);
  }
  std::lock_guard lock(mutex_);
  ended_ = true;
  return std::make_shared<Graph>(std::exchange(nodes_, {}));
}

bool Capture::forbids() {
  if (thread_mode == capture_relaxed) return false;
  std::lock_guard lock(captures().mutex);
  bool forbidden = false;
  for (Capture* capture : captures().all) {
    const bool own = capture->thread_ == std::this_thread::get_id();
    if (capture->mode_ == capture_relaxed) continue;
    if (!own && (thread_mode != capture_global || capture->mode_ != capture_global)) continue;
    capture->invalidate();
    forbidden = true;
  }
  return forbidden;
}

int Capture::exchange_mode(int mode) { return std::exchange(thread_mode, mode); }

}  // namespace hetcomm::emulated
