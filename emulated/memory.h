#pragma once

#include <cstddef>

namespace hetcomm::emulated {

// What the runtime knows of memory. Pinned memory is host memory; whatever else exists counts as
// memory of a device. All functions are thread-safe.
struct Block {
  char* base = nullptr;
  size_t bytes = 0;
  int device = 0;  // that was current when it was made
  bool pinned = false;
  bool owned = true;  // false: registered by the user
};

void* allocate(size_t bytes, int device, bool pinned);  // null: out of memory
bool register_pinned(void* pointer, size_t bytes, int device);
bool release(void* base, bool pinned);         // false: not the base of such a block
bool unregister_pinned(void* base);            // likewise
bool find(const void* pointer, Block& block);  // the block that holds `pointer`

}  // namespace hetcomm::emulated
