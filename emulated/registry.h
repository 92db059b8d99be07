#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace hetcomm::emulated {

// The objects of one kind behind the handles that callers hold: a handle is an object's address.
// Thread-safe.
template <typename T>
class Registry {
 public:
  void* add(std::shared_ptr<T> object) {
    std::lock_guard lock(mutex_);
    void* handle = object.get();
    objects_.emplace(handle, std::move(object));
    return handle;
  }
  // take() and find() return null for unknown handles.
  std::shared_ptr<T> take(void* handle) {
    std::lock_guard lock(mutex_);
    auto found = objects_.extract(handle);
    return found ? std::move(found.mapped()) : nullptr;
  }
  std::shared_ptr<T> find(void* handle) {
    std::lock_guard lock(mutex_);
    auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }
  std::vector<std::shared_ptr<T>> all() {
    std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<T>> copies;
    for (auto& [handle, object] : objects_) copies.push_back(object);
    return copies;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, std::shared_ptr<T>> objects_;
};

// The registry of this process. Never destroyed: threads may outlive static objects.
template <typename T>
Registry<T>& registry() {
  static auto* all = new Registry<T>;
  return *all;
}

}  // namespace hetcomm::emulated
