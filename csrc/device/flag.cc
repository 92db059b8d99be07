#include "device/flag.h"

#include <new>

namespace hetcomm {

namespace {
constexpr size_t kLine = 64;
constexpr size_t kBlock = 65536;  // enough for most programs
}  // namespace

FlagWords::FlagWords(std::function<void*(size_t)> allocate_pinned)
    : allocate_(std::move(allocate_pinned)) {
  make_words();
}

// Allocates without the lock: the runtime may wait for a stream whose function gives a word back.
void FlagWords::make_words() {
  char* block = static_cast<char*>(allocate_(kBlock));
  std::lock_guard lock(mutex_);
  for (size_t at = 0; at < kBlock; at += kLine) free_.push_back(new (block + at) FlagWord);
}

FlagWord* FlagWords::take() {
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        FlagWord* word = free_.back();
        free_.pop_back();
        word->store(0, std::memory_order_relaxed);
        return word;
      }
    }
    make_words();
  }
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
