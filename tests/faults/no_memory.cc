// Preloaded into a rank. Makes the next allocations on hetcomm's progress thread fail on demand.

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

static std::atomic<int> left{0};

extern "C" void fail_allocations(int count) { left = count; }

static bool fails() {
  char name[16] = {};
  if (left.load() <= 0 || pthread_getname_np(pthread_self(), name, sizeof name) != 0) return false;
  return std::strcmp(name, "hetcomm") == 0 && left.fetch_sub(1) > 0;
}

void* operator new(size_t size) {
  void* memory = fails() ? nullptr : std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
