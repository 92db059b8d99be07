#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace hetcomm {

// Numbers below a limit, of which none is out twice. A number that was given back comes again as
// late as possible, so that what is still on its way to its last owner reaches nobody else.
// Thread-safe.
class Numbers {
 public:
  explicit Numbers(uint32_t limit) : out_(limit) {}

  // Throws Error(invalid_argument) if all are out.
  uint32_t take();
  void give_back(uint32_t number);

 private:
  std::mutex mutex_;
  std::vector<bool> out_;
  uint32_t next_ = 0;
};

// The number of one communicator of this process, which peers put into tags. Owned by what the
// communicator keeps as long as messages to it may arrive.
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
