#pragma once

#include <cstdint>
#include <map>
#include <mutex>

namespace hetcomm {

// Blocks of unique numbers below a limit. A released number comes again as late as possible, so
// that late messages to its last owner reach no other owner. Thread-safe.
class Numbers {
 public:
  explicit Numbers(uint32_t limit) : limit_(limit) {}

  // The first of `count` numbers, a power of two, and a multiple of it. Throws
  // Error(invalid_argument) if no such block is free.
  uint32_t take(uint32_t count = 1);
  void release(uint32_t first);

 private:
  const uint32_t limit_;
  std::mutex mutex_;
  std::map<uint32_t, uint32_t> taken_;  // by first number, the end of the block
  uint32_t next_ = 0;
};

// One number for each rank of a communicator of this process. Senders put their numbers into tags.
// A block lasts as long as messages to the communicator may arrive.
class SenderNumbers {
 public:
  explicit SenderNumbers(int ranks);
  ~SenderNumbers();
  SenderNumbers(const SenderNumbers&) = delete;

  uint32_t first() const { return first_; }  // of rank 0; the others follow

 private:
  const uint32_t first_;
};

}  // namespace hetcomm
