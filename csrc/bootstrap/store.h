#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "base/deadline.h"
#include "base/status.h"

namespace hetcomm {

// A key-value store that all ranks of a job reach. Only set-up uses it.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits for the key; throws Error(timeout) once the deadline has passed.
  virtual std::string get(const std::string& key, const Deadline& deadline) = 0;
};

// For ranks that are threads of one process. Thread-safe.
class LocalStore : public Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key, const Deadline& deadline) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, deadline.left(), [&] { return values_.count(key) > 0; })) {
      throw Error(Code::timeout, "the store has no key " + key + " yet");
    }
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace hetcomm
