#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/status.h"

namespace hetcomm {

// A key-value store that all ranks of a job reach. Only set-up uses it.
class Store {
 public:
  virtual ~Store() = default;
  // Throws Error(timeout) once the deadline has passed, if the store can tell.
  virtual void set(const std::string& key, const std::string& value, const Deadline& deadline) = 0;
  // Waits for the key; throws Error(timeout) once the deadline has passed.
  virtual std::string get(const std::string& key, const Deadline& deadline) = 0;
  // Forgets keys that nobody reads any more, if the store can.
  virtual void remove(const std::vector<std::string>& /*keys*/) {}
  // Has the store set a key without a value if this process ends before withdraw_will(). Stores
  // that do not see the end of a process do nothing.
  virtual void leave_will(const std::string& /*key*/, const std::string& /*value*/,
                          const Deadline& /*deadline*/) {}
  virtual void withdraw_will(const std::string& /*key*/, const Deadline& /*deadline*/) {}
  // For messages: "the store at 198.18.0.1:29500".
  virtual std::string place() const { return "the store"; }
};

// The store has failed, or does not answer in time. No rank is to blame.
class StoreError : public Error {
 public:
  using Error::Error;
};

// For ranks that are threads of one process. Thread-safe.
class LocalStore : public Store {
 public:
  void set(const std::string& key, const std::string& value, const Deadline&) override {
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
  void remove(const std::vector<std::string>& keys) override {
    std::lock_guard lock(mutex_);
    for (const std::string& key : keys) values_.erase(key);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace hetcomm
