#pragma once

#include <c10/core/Allocator.h>

namespace hetcomm {

// Memory of tensors in shared allocations (island/shm/shm.h), of any contents. What tensors give
// back is kept for others of the same size, since new pages cost more than most calls save.
// Thread-safe. Lives until the process ends.
class SharedAllocator final : public c10::Allocator {
 public:
  static SharedAllocator& instance();

  // Throws Error(vendor) where there is none left.
  c10::DataPtr allocate(size_t bytes) override;
  void copy_data(void* target, const void* source, size_t bytes) const override;

 private:
  SharedAllocator() = default;
};

}  // namespace hetcomm
