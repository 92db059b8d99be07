#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>

#include "base/fnv.h"
#include "transport/loopback/inbox.h"

namespace hetcomm::loopback {

// Names a loopback transport of a process.
struct Address {
  uint64_t process = 0, number = 0, checksum = 0;

  uint64_t sum() const {
    return fnv1a({reinterpret_cast<const char*>(this), offsetof(Address, checksum)});
  }
  std::string pack() {
    checksum = sum();
    return {reinterpret_cast<const char*>(this), sizeof *this};
  }
  static std::optional<Address> unpack(const std::string& bytes) {
    Address address;
    if (bytes.size() != sizeof address) return std::nullopt;
    std::memcpy(&address, bytes.data(), sizeof address);
    if (address.checksum != address.sum()) return std::nullopt;
    return address;
  }
};

// The transports of this process, by number. Thread-safe.
class Inboxes {
 public:
  uint64_t process() const { return process_; }
  uint64_t add(const std::shared_ptr<Inbox>& inbox) {
    std::lock_guard lock(mutex_);
    all_[next_] = inbox;
    return next_++;
  }
  void remove(uint64_t number) {
    std::lock_guard lock(mutex_);
    all_.erase(number);
  }
  std::shared_ptr<Inbox> find(uint64_t number) {
    std::lock_guard lock(mutex_);
    const auto found = all_.find(number);
    return found == all_.end() ? nullptr : found->second.lock();
  }

 private:
  static uint64_t random() {
    std::random_device device;
    return uint64_t{device()} << 32 | device();
  }

  const uint64_t process_ = random();
  std::mutex mutex_;
  std::map<uint64_t, std::weak_ptr<Inbox>> all_;
  uint64_t next_ = 0;
};

}  // namespace hetcomm::loopback
