#include "plan/staging_cache.h"

#include <algorithm>
#include <bit>

namespace hetcomm {
namespace {

// Blocks of a size before one is evicted, even beyond the bound: copies and messages then overlap.
constexpr int kLeastBlocks = 4;

bool contains(const Range& outer, const Range& inner) {
  return outer.space == inner.space && outer.offset <= inner.offset && inner.end() <= outer.end();
}

}  // namespace

StagingCache::StagingCache(int64_t bound, Copy copy) : bound_(bound), copy_(std::move(copy)) {
  // Scratch starts without a value, so nothing of it is copied.
  for (Space space : {Space::input, Space::output}) {
    values_[static_cast<int>(space)] = ByteMap<Value>(Value{.device = true});
  }
}

Range StagingCache::read(const Range& range) {
  if (range.count == 0) return {Space::staging, 0, 0, range.dtype};
  const Block& block = blocks_[block_for(range)];
  Range missing = range.within(range.offset, range.offset);
  const auto copy = [&] {
    if (missing.count == 0) return;
    if (range.codec) missing = range;
    count_scratch(missing);
    copy_(missing, in_staging(block, missing));
  };
  values(range).each(range, [&](Value& value, int64_t begin, int64_t end) {
    if (value.device && !value.staging) {
      if (missing.end() != begin) {
        copy();
        missing = range.within(begin, begin);
      }
      missing = range.within(missing.offset, end);
    }
    value.staging = true;
  });
  copy();
  return in_staging(block, range);
}

Range StagingCache::write(const Range& range) {
  if (range.count == 0) return {Space::staging, 0, 0, range.dtype};
  discard(range);
  const Block& block = blocks_[block_for(range)];
  set(range, false, true);
  return in_staging(block, range);
}

void StagingCache::read_device(const Range& range) {
  count_scratch(range);
  write_back(range);
}

void StagingCache::write_device(const Range& range) {
  count_scratch(range);
  set(range, true, false);
}

void StagingCache::discard(const Range& range) { set(range, false, false); }

void StagingCache::set(const Range& range, bool device, bool staging) {
  const Range encoded = range.codec ? range : Range{};
  values(range).each(range, [&](Value& value, int64_t, int64_t) {
    value.device = device;
    value.staging = staging;
    value.encoded = encoded;
  });
}

bool StagingCache::in_device(const Range& range) {
  bool all = true;
  values(range).each(range, [&](const Value& value, int64_t, int64_t) {
    all = all && (value.device || !value.staging);
  });
  return all;
}

// Copies the values that only staging holds to device memory. Neighbours in one block are one copy.
void StagingCache::write_back(const Range& range) {
  Range stale = range.within(0, 0);
  int from = -1;
  const auto copy = [&] {
    if (stale.count == 0) return;
    count_scratch(stale);
    copy_(in_staging(blocks_[from], stale), stale);
  };
  values(range).each(range, [&](Value& value, int64_t begin, int64_t end) {
    if (value.device || !value.staging) return;
    value.device = true;
    if (value.encoded.codec && value.encoded == stale) return;
    if (value.block != from || stale.end() != begin || stale.codec || value.encoded.codec) {
      copy();
      stale = range.within(begin, begin);
      from = value.block;
    }
    stale = value.encoded.codec ? value.encoded : range.within(stale.offset, end);
  });
  copy();
}

// The block that caches the whole range. A block that caches a part of the range is evicted.
int StagingCache::block_for(const Range& range) {
  std::vector<int> overlapping;
  values(range).each(range, [&](const Value& value, int64_t, int64_t) {
    if (value.block >= 0) overlapping.push_back(value.block);
  });
  int found = -1;
  for (int block : overlapping) {
    if (contains(blocks_[block].cached, range)) {
      found = block;
    } else {
      evict(block);
    }
  }
  if (found < 0) {
    found = allocate(range.bytes());
    blocks_[found].cached = range;
    values(range).each(range, [=](Value& value, int64_t, int64_t) { value.block = found; });
  }
  blocks_[found].used = step_;
  return found;
}

int StagingCache::allocate(int64_t bytes) {
  // A few sizes only, so that a block fits many ranges.
  const int64_t quarter = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes))) / 4;
  const int64_t grain = std::max(kCacheLine, quarter / kCacheLine * kCacheLine);
  const int64_t capacity = (bytes + grain - 1) / grain * grain;
  int oldest = -1, large_enough = 0;
  if (staging_bytes_ + capacity > bound_) {
    for (int i = 0; i < static_cast<int>(blocks_.size()); ++i) {
      if (blocks_[i].capacity < capacity) continue;
      ++large_enough;
      const bool older = oldest < 0 || blocks_[i].used < blocks_[oldest].used;
      if (older && evictable(blocks_[i])) oldest = i;
    }
  }
  if (oldest >= 0 && large_enough >= kLeastBlocks) {
    evict(oldest);
    return oldest;
  }
  blocks_.push_back({staging_bytes_, capacity, {}, step_});
  staging_bytes_ += capacity;
  return static_cast<int>(blocks_.size()) - 1;
}

// Scratch in staging alone stays: received values that are used at once need no device memory.
bool StagingCache::evictable(const Block& block) {
  if (block.used == step_) return false;
  return block.cached.space != Space::scratch || in_device(block.cached);
}

void StagingCache::evict(int block) {
  const Range range = blocks_[block].cached;
  if (range.count == 0) return;
  write_back(range);
  values(range).each(range, [](Value& value, int64_t, int64_t) {
    value.staging = false;
    value.block = -1;
  });
  blocks_[block].cached.count = 0;
}

void StagingCache::count_scratch(const Range& range) {
  if (range.space == Space::scratch && range.count > 0) {
    scratch_bytes_ = std::max(scratch_bytes_, range.end());
  }
}

Range StagingCache::in_staging(const Block& block, const Range& range) const {
  return {Space::staging, block.offset + range.offset - block.cached.offset, range.count,
          range.dtype, range.codec};
}

}  // namespace hetcomm
