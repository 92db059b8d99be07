#include "plan/staging_cache.h"

#include <algorithm>
#include <bit>

namespace hetcomm {
namespace {

// Even beyond the bound there are as many blocks of a size, so that copies and messages overlap.
constexpr int kLeastBlocks = 4;

bool contains(const Range& outer, const Range& inner) {
  return outer.space == inner.space && outer.offset <= inner.offset && inner.end() <= outer.end();
}

}  // namespace

StagingCache::StagingCache(int64_t bound, Copy copy) : bound_(bound), copy_(std::move(copy)) {
  // Scratch starts with no value, which need not be copied anywhere.
  for (Space space : {Space::input, Space::output, Space::scratch}) {
    cells_[static_cast<int>(space)][0].device = space != Space::scratch;
  }
}

// Calls visit(cell, begin, end) for the cells of a range, cut at its ends.
template <typename Visit>
void StagingCache::each(const Range& range, const Visit& visit) {
  if (range.count == 0) return;
  Cells& all = cells(range);
  const auto split = [&all](int64_t at) {
    const auto cell = std::prev(all.upper_bound(at));
    if (cell->first == at) return cell;
    return all.emplace_hint(std::next(cell), at, Cell(cell->second));
  };
  const auto end = split(range.end());
  for (auto cell = split(range.offset); cell != end; ++cell) {
    visit(cell->second, cell->first, std::next(cell)->first);
  }
}

Range StagingCache::read(const Range& range) {
  if (range.count == 0) return {Space::staging, 0, 0, range.dtype};
  const Block& block = blocks_[block_for(range)];
  Range missing = range.part(0, 0);
  const auto copy = [&] {
    if (missing.count == 0) return;
    count_scratch(missing);
    copy_(missing, in_staging(block, missing));
  };
  each(range, [&](Cell& cell, int64_t begin, int64_t end) {
    if (cell.device && !cell.staging) {
      if (missing.end() != begin) {
        copy();
        missing = range.within(begin, begin);
      }
      missing = range.within(missing.offset, end);
    }
    cell.staging = true;
  });
  copy();
  return in_staging(block, range);
}

Range StagingCache::write(const Range& range) {
  if (range.count == 0) return {Space::staging, 0, 0, range.dtype};
  discard(range);
  const Block& block = blocks_[block_for(range)];
  each(range, [](Cell& cell, int64_t, int64_t) {
    cell.device = false;
    cell.staging = true;
  });
  return in_staging(block, range);
}

void StagingCache::read_device(const Range& range) {
  count_scratch(range);
  write_back(range);
}

void StagingCache::write_device(const Range& range) {
  count_scratch(range);
  each(range, [](Cell& cell, int64_t, int64_t) {
    cell.device = true;
    cell.staging = false;
  });
}

void StagingCache::discard(const Range& range) {
  each(range, [](Cell& cell, int64_t, int64_t) { cell.device = cell.staging = false; });
}

bool StagingCache::in_device(const Range& range) {
  bool all = true;
  each(range, [&](Cell& cell, int64_t, int64_t) { all &= cell.device || !cell.staging; });
  return all;
}

// Copies values that only staging has to device memory, neighbours in one block by one copy.
void StagingCache::write_back(const Range& range) {
  Range stale = range.within(0, 0);
  int from = -1;
  const auto copy = [&] {
    if (stale.count == 0) return;
    count_scratch(stale);
    copy_(in_staging(blocks_[from], stale), stale);
  };
  each(range, [&](Cell& cell, int64_t begin, int64_t end) {
    if (cell.device || !cell.staging) return;
    if (cell.block != from || stale.end() != begin) {
      copy();
      stale = range.within(begin, begin);
      from = cell.block;
    }
    stale = range.within(stale.offset, end);
    cell.device = true;
  });
  copy();
}

// The block that caches the whole range. A block that caches a part of the range is evicted.
int StagingCache::block_for(const Range& range) {
  std::vector<int> overlapping;
  each(range, [&](Cell& cell, int64_t, int64_t) {
    if (cell.block >= 0) overlapping.push_back(cell.block);
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
    each(range, [found](Cell& cell, int64_t, int64_t) { cell.block = found; });
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

// Scratch that is received and then used up never needs device memory.
bool StagingCache::evictable(const Block& block) {
  if (block.used == step_) return false;
  return block.cached.space != Space::scratch || in_device(block.cached);
}

void StagingCache::evict(int block) {
  const Range range = blocks_[block].cached;
  if (range.count == 0) return;
  write_back(range);
  each(range, [](Cell& cell, int64_t, int64_t) {
    cell.staging = false;
    cell.block = -1;
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
          range.dtype};
}

}  // namespace hetcomm
