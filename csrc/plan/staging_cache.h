#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/byte_map.h"
#include "plan/plan.h"

namespace hetcomm {

// Staging as a write-back cache of one rank's device memory, while the steps of the rank are
// lowered. A value lies in device memory, in staging, in both, or nowhere if no step needs it. A
// block of staging caches one contiguous range of device memory. Beyond a bound the least recently
// used block is evicted. Encoded elements are copied as a whole. Ranges in this interface are
// ranges of device memory. Use once, on one thread.
class StagingCache {
 public:
  // Calls `copy` for every copy between device memory and staging, in serial order. `bound`: bytes.
  using Copy = std::function<void(const Range& source, const Range& target)>;
  StagingCache(int64_t bound, Copy copy);

  // The range of staging in which a step reads the value, or overwrites the value.
  Range read(const Range& range);
  Range write(const Range& range);
  // To be called before a step reads the value in device memory, or overwrites the value there.
  void read_device(const Range& range);
  void write_device(const Range& range);
  // No later step reads the value.
  void discard(const Range& range);
  // Blocks of the step before may be evicted from now on.
  void next_step() { ++step_; }

  bool in_device(const Range& range);  // whether a step can read it there without a copy
  int64_t staging_bytes() const { return staging_bytes_; }
  int64_t scratch_bytes() const { return scratch_bytes_; }  // of scratch in device memory

 private:
  struct Value {
    bool device = false, staging = false;  // where the value is
    int block = -1;                        // the block that caches the range, -1 without one
    Range encoded = {};                    // all elements that were encoded with these; or no codec
  };
  struct Block {
    int64_t offset, capacity;  // bytes
    Range cached;              // empty if the block is free
    int64_t used;              // the last step that used the block
  };

  ByteMap<Value>& values(const Range& range) { return values_[static_cast<int>(range.space)]; }
  void set(const Range& range, bool device, bool staging);
  void write_back(const Range& range);
  int block_for(const Range& range);
  int allocate(int64_t bytes);
  bool evictable(const Block& block);
  void evict(int block);
  void count_scratch(const Range& range);
  Range in_staging(const Block& block, const Range& range) const;

  int64_t bound_;
  Copy copy_;
  ByteMap<Value> values_[3];  // by Space
  std::vector<Block> blocks_;
  int64_t step_ = 0, staging_bytes_ = 0, scratch_bytes_ = 0;
};

}  // namespace hetcomm
