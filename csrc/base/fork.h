#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

// A child of fork() has its parent's memory and descriptors, but only one thread, and locks in any
// state. So the child leaves its parent's objects alone. No function here makes a system call.
// Thread-safe.
namespace hetcomm {

// The number of forks between the program's first process and this process.
extern std::atomic<uint32_t> fork_depth;

// Marks an object as this process's. A copy has the mark of the original.
class ProcessMark {
 public:
  // Whether a parent of this process made the object.
  bool inherited() const { return depth_ != fork_depth.load(std::memory_order_relaxed); }

 private:
  uint32_t depth_ = fork_depth.load(std::memory_order_relaxed);
};

// A mutex that is locked during fork(), so a child finds the mutex free and the guarded data whole.
// Never destroyed. A thread holds one such mutex at a time, and waits for nothing meanwhile.
class MutexAcrossFork : public std::mutex {
 public:
  MutexAcrossFork();
};

// The one T of this process, made at first use and never destroyed. A child makes its own T.
template <typename T, typename... Arguments>
T& of_process(const Arguments&... arguments) {
  struct Made {
    ProcessMark mark;
    T value;
    explicit Made(const Arguments&... given) : value(given...) {}
  };
  static std::atomic<Made*> current{nullptr};
  Made* found = current.load(std::memory_order_acquire);
  while (found == nullptr || found->mark.inherited()) {
    auto made = std::make_unique<Made>(arguments...);
    if (current.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel)) {
      found = made.release();
    }
  }
  return found->value;
}

// Does not destroy inherited objects.
template <typename T>
struct ProcessAllocator {
  using value_type = T;
  ProcessMark mark;

  ProcessAllocator() = default;
  template <typename Other>
  ProcessAllocator(const ProcessAllocator<Other>& other) : mark(other.mark) {}
  T* allocate(size_t count) { return std::allocator<T>().allocate(count); }
  void deallocate(T* pointer, size_t count) { std::allocator<T>().deallocate(pointer, count); }
  template <typename Other>
  void destroy(Other* object) {
    if (!mark.inherited()) object->~Other();
  }
  bool operator==(const ProcessAllocator&) const { return true; }
};

// Like std::make_shared(), for an object with threads, locks or descriptors of this process: a
// child never runs the destructor.
template <typename T, typename... Arguments>
std::shared_ptr<T> make_shared_of_process(Arguments&&... arguments) {
  return std::allocate_shared<T>(ProcessAllocator<T>(), std::forward<Arguments>(arguments)...);
}

}  // namespace hetcomm
