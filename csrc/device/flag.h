#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace hetcomm {

using FlagWord = std::atomic<uint32_t>;

// Words of pinned memory for flags, a cache line each. The runtime never gets them back, so that a
// flag may end on any thread. Owned by a device and its flags. Thread-safe.
class FlagWords {
 public:
  explicit FlagWords(std::function<void*(size_t)> allocate_pinned);  // throws Error(vendor)
  FlagWord* take();                                                  // zero; throws Error(vendor)
  void give(FlagWord* word);

 private:
  void make_words();

  const std::function<void*(size_t)> allocate_;
  std::mutex mutex_;
  std::vector<FlagWord*> free_;
};

// A word that the host sets once and that streams wait for. Made by Device::make_flag(), shared by
// the host's code and the waiting streams. Thread-safe.
class Flag {
 public:
  explicit Flag(std::shared_ptr<FlagWords> words)
      : words_(std::move(words)), word_(words_->take()) {}
  ~Flag() { words_->give(word_); }
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;

  void set();
  bool is_set() const { return word_->load(std::memory_order_acquire) != 0; }
  void await() const { word_->wait(0, std::memory_order_acquire); }  // ends with set() only
  const FlagWord* word() const { return word_; }                     // 0, then 1

 private:
  std::shared_ptr<FlagWords> words_;
  FlagWord* word_;
};

}  // namespace hetcomm
