#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace hetcomm {

// Unique numbers below a limit. A released number comes again as late as possible, so that late
// messages to its last owner reach no other owner. Thread-safe.
class Numbers {
 public:
  explicit Numbers(uint32_t limit) : taken_(limit) {}

  // Throws Error(invalid_argument) if all numbers are taken.
  uint32_t take();
  void release(uint32_t number);

 private:
  std::mutex mutex_;
  std::vector<bool> taken_;
  uint32_t next_ = 0;
};

// The number of one communicator of this process. Peers put the number into tags. It lasts as long
// as messages to the communicator may arrive.
class CommunicatorNumber {
 public:
  CommunicatorNumber();
  ~CommunicatorNumber();
  CommunicatorNumber(const CommunicatorNumber&) = delete;

  uint32_t value() const { return value_; }

 private:
  const uint32_t value_;
};

}  // namespace hetcomm
