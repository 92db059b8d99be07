#include "bootstrap/store.h"

#include "base/status.h"

namespace hetcomm {

std::string LocalStore::get(const std::string& key, const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, deadline.left(), [&] { return values_.count(key) > 0; })) {
    throw Error(Code::timeout, "the store has no key " + key + " yet");
  }
  return values_[key];
}

}  // namespace hetcomm
