#pragma once

#include <utility>

#include "base/fork.h"

namespace hetcomm {

// A file descriptor that closes with its owner, and in a child of fork() as the child begins; -1 if
// there is none. A child with its parent's socket would hide the parent's death from the parent's
// peers.
class ProcessDescriptor {
 public:
  explicit ProcessDescriptor(int number = -1);
  ProcessDescriptor(ProcessDescriptor&& other) noexcept
      : number_(std::exchange(other.number_, -1)), mark_(other.mark_) {}
  ProcessDescriptor& operator=(ProcessDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    std::swap(mark_, other.mark_);
    return *this;
  }
  ~ProcessDescriptor();
  operator int() const { return number_; }

 private:
  int number_;
  ProcessMark mark_;
};

}  // namespace hetcomm
