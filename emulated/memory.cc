#include "emulated/memory.h"

#include <cstdlib>
#include <map>
#include <mutex>

#include "emulated/hostile.h"

namespace hetcomm::emulated {

namespace {

constexpr size_t kAlignment = 512;  // as the vendors' allocators give

std::mutex mutex;

std::map<const char*, Block>& blocks() {  // by base; guarded by `mutex`
  static auto* all = new std::map<const char*, Block>;
  return *all;
}

bool remove(void* base, bool pinned, bool owned, size_t* bytes = nullptr) {
  std::lock_guard lock(mutex);
  auto found = blocks().find(static_cast<char*>(base));
  if (found == blocks().end() || found->second.pinned != pinned || found->second.owned != owned) {
    return false;
  }
  if (bytes != nullptr) *bytes = found->second.bytes;
  blocks().erase(found);
  return true;
}

}  // namespace

void* allocate(size_t bytes, int device, bool pinned) {
  size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (rounded < bytes) return nullptr;
  void* base = std::aligned_alloc(kAlignment, rounded);
  if (base == nullptr) return nullptr;
  poison(base, rounded);
  std::lock_guard lock(mutex);
  char* first = static_cast<char*>(base);
  blocks()[first] = {first, bytes, device, pinned, true};
  return base;
}

bool register_pinned(void* pointer, size_t bytes, int device) {
  Block held;
  if (bytes == 0 || find(pointer, held)) return false;
  std::lock_guard lock(mutex);
  char* first = static_cast<char*>(pointer);
  return blocks().emplace(first, Block{first, bytes, device, true, false}).second;
}

bool release(void* base, bool pinned) {
  size_t bytes = 0;
  if (!remove(base, pinned, true, &bytes)) return false;
  poison(base, bytes);
  std::free(base);
  return true;
}

bool unregister_pinned(void* base) { return remove(base, true, false); }

bool find(const void* pointer, Block& block) {
  std::lock_guard lock(mutex);
  const char* address = static_cast<const char*>(pointer);
  auto after = blocks().upper_bound(address);
  if (after == blocks().begin()) return false;
  const Block& candidate = std::prev(after)->second;
  if (address >= candidate.base + candidate.bytes) return false;
  block = candidate;
  return true;
}

}  // namespace hetcomm::emulated
