#include "exec/completion.h"

namespace hetcomm {

Completion::Aftermath Completion::announce() {
  Aftermath left;
  done_.store(true);
  if (!watched_.load()) return left;
  std::lock_guard lock(mutex_);
  left.listeners.swap(listeners_);
  if (released_) left.memory.swap(memory_);
  return left;
}

void Completion::when_done(Listener listener, const Status& status) {
  watched_.store(true);
  {
    std::lock_guard lock(mutex_);
    if (!done()) {
      listeners_.push_back(std::move(listener));
      return;
    }
  }
  listener(status);
}

void Completion::keep_alive(std::shared_ptr<void> memory) {
  watched_.store(true);
  if (done() && released_) return;
  std::lock_guard lock(mutex_);
  if (!done() || !released_) memory_.push_back(std::move(memory));
}

void Completion::note_caller(const std::string& line) {
  std::lock_guard lock(mutex_);
  if (!line.empty()) caller_ = std::make_unique<std::string>(line);
}

std::string Completion::caller() const {
  std::lock_guard lock(mutex_);
  return caller_ ? *caller_ : "";
}

}  // namespace hetcomm
