#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"
#include "device/device.h"

namespace hetcomm {

// What lossy codecs have lost of one tensor so far: float32 values, at first zeros. A rank loses
// something of its own segments only. The system gives pages of other segments no memory. Where a
// device encodes, its memory has the values from the first to the last that the device loses,
// until on_host() brings them back. Thread-safe, but for the values.
class Residual {
 public:
  explicit Residual(size_t count);  // throws std::bad_alloc
  ~Residual();
  Residual(const Residual&) = delete;

  size_t count() const { return count_; }
  float* values() const { return static_cast<float*>(values_); }  // as on_host() left them
  // All values in host memory, where they stay until the next on_device(). Waits up to 60 s for
  // operations that update them in device memory. Throws Error(timeout) and Error(vendor).
  float* on_host();
  // Elements [first, end) in memory of the device, for one operation until done_on_device(). The
  // result points to where element 0 would be. Throws like on_host().
  float* on_device(const std::shared_ptr<Device>& device, size_t first, size_t end);
  // `released`: false if the device may still use the memory, which is then never released.
  void done_on_device(bool released);

 private:
  size_t bytes() const { return std::max<size_t>(count_, 1) * sizeof(float); }
  bool covers(const Device* device, size_t first, size_t end) const {
    return device_.get() == device && first_ <= first && end <= end_;
  }
  void bring_back(std::unique_lock<std::mutex>& lock);
  void forget_device();
  void copy(void* target, const void* source);  // the values that device memory has

  const size_t count_;
  void* const values_;
  std::mutex mutex_;
  std::condition_variable unused_;
  int operations_ = 0;              // that use the device's memory
  std::shared_ptr<Device> device_;  // null: all values are in host memory
  size_t first_ = 0, end_ = 0;      // elements in device memory
  void* memory_ = nullptr;          // of the device
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
