#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>

#include "base/status.h"

namespace hetcomm {

// What lossy codecs have lost of one tensor so far: float32 values, at first zeros. A rank loses
// something of its own segments only. The system gives pages of other segments no memory.
class Residual {
 public:
  explicit Residual(size_t count)
      : count_(count),
        values_(
            mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (values_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~Residual() { munmap(values_, bytes()); }
  Residual(const Residual&) = delete;
  float* data() const { return static_cast<float*>(values_); }
  size_t count() const { return count_; }

 private:
  size_t bytes() const { return std::max<size_t>(count_, 1) * sizeof(float); }

  const size_t count_;
  void* const values_;
};

// Error feedback: the residuals of tensors by key, as of Karimireddy and others (arXiv 1901.09847).
// Thread-safe.
class Feedback {
 public:
  // Makes a residual of zeros for a new key. Throws Error(invalid_argument) if the key has a
  // residual of another size.
  std::shared_ptr<Residual> at(const std::string& key, size_t count) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Residual>& found = residuals_[key];
    if (!found) found = std::make_shared<Residual>(count);
    if (found->count() == count) return found;
    throw Error(Code::invalid_argument, "feedback \"" + key + "\": expected a tensor of " +
                                            std::to_string(found->count()) +
                                            " elements, as before; got " + std::to_string(count) +
                                            "; give each tensor its own key, or call clear()");
  }
  std::map<std::string, std::shared_ptr<Residual>> residuals() const {
    const std::lock_guard lock(mutex_);
    return residuals_;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    residuals_.clear();
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Residual>> residuals_;
};

}  // namespace hetcomm
