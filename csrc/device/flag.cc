#include "device/flag.h"

#include <new>

namespace hetcomm {

namespace {
constexpr size_t kLine = 64;
constexpr size_t kBlock = 4096;
}  // namespace

FlagWord* FlagWords::take() {
  std::lock_guard lock(mutex_);
  if (free_.empty()) {
    char* block = static_cast<char*>(allocate_(kBlock));
    for (size_t at = 0; at < kBlock; at += kLine) free_.push_back(new (block + at) FlagWord);
  }
  FlagWord* word = free_.back();
  free_.pop_back();
  word->store(0, std::memory_order_relaxed);
  return word;
}

void FlagWords::give(FlagWord* word) {
  std::lock_guard lock(mutex_);
  free_.push_back(word);
}

void Flag::set() {
  word_->store(1, std::memory_order_release);
  word_->notify_all();
}

}  // namespace hetcomm
