#pragma once

#include <cstddef>
#include <cstdlib>
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
      : values_(static_cast<float*>(std::calloc(count ? count : 1, sizeof(float)))), count_(count) {
    if (!values_) throw std::bad_alloc();
  }
  float* data() const { return values_.get(); }
  size_t count() const { return count_; }

 private:
  struct Free {
    void operator()(float* values) const { std::free(values); }
  };
  std::unique_ptr<float, Free> values_;
  size_t count_;
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
