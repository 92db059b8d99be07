#pragma once

#include <c10/core/Allocator.h>

namespace hetcomm {

// Allocates uninitialised tensors in shared allocations (island/shm/shm.h). Keeps released blocks
// for reuse, since new pages cost more than most calls save. Thread-safe. Never destroyed.
class SharedAllocator final : public c10::Allocator {
 public:
  static SharedAllocator& instance();

  // Throws Error(vendor) if shared memory is exhausted.
  c10::DataPtr allocate(size_t bytes) override;
  void copy_data(void* target, const void* source, size_t bytes) const override;

 private:
  SharedAllocator() = default;
};

}  // namespace hetcomm
