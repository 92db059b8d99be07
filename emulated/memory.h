#pragma once

#include <cstddef>

namespace hetcomm::emulated {

// A block of memory that the runtime knows. Pinned memory counts as host memory, all other memory
// as memory of a device. All functions are thread-safe.
struct Block {
  char* base = nullptr;
  size_t bytes = 0;
  int device = 0;  // current at the allocation
  bool pinned = false;
  bool owned = true;  // false: registered by the user
};

void* allocate(size_t bytes, int device, bool pinned);  // null: out of memory
bool register_pinned(void* pointer, size_t bytes, int device);
// False if `base` is not the base of such a block.
bool release(void* base, bool pinned);
bool unregister_pinned(void* base);
bool find(const void* pointer, Block& block);  // the block that holds `pointer`

}  // namespace hetcomm::emulated
