#include "plan/residence.h"

#include <algorithm>
#include <bit>

namespace hetcomm {
namespace {

// Even beyond the bound there are as many blocks of a size, so that copies and messages overlap.
constexpr int kLeastBlocks = 4;
constexpr int64_t kCacheLine = 64;

bool contains(const Range& outer, const Range& inner) {
  return outer.space == inner.space && outer.offset <= inner.offset && inner.end() <= outer.end();
}

}  // namespace

Residence::Residence(int64_t bound, Copy copy) : bound_(bound), copy_(std::move(copy)) {
  // Scratch starts with no value, which need not be copied anywhere.
  for (Space space : {Space::input, Space::output, Space::scratch}) {
    cells_[static_cast<int>(space)][0].home = space != Space::scratch;
  }
}

// Calls visit(cell, begin, end) for the cells of a range, cut at its ends.
template <typename Visit>
void Residence::each(const Range& range, const Visit& visit) {
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

Range Residence::fetch(const Range& range) {
  if (range.count == 0) return {Space::staging, 0, 0, range.dtype};
  const Block& block = blocks_[block_for(range)];
  Range missing = range.part(0, 0);
  const auto copy = [&] {
    if (missing.count == 0) return;
    use_home(missing);
    copy_(missing, in_staging(block, missing));
  };
  each(range, [&](Cell& cell, int64_t begin, int64_t end) {
    if (cell.home && !cell.staging) {
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

Range Residence::place(const Range& range) {
  if (range.count == 0) return {Space::staging, 0, 0, range.dtype};
  forget(range);
  const Block& block = blocks_[block_for(range)];
  each(range, [](Cell& cell, int64_t, int64_t) {
    cell.home = false;
    cell.staging = true;
  });
  return in_staging(block, range);
}

void Residence::read_home(const Range& range) {
  use_home(range);
  update(range);
}

void Residence::write_home(const Range& range) {
  use_home(range);
  each(range, [](Cell& cell, int64_t, int64_t) {
    cell.home = true;
    cell.staging = false;
  });
}

void Residence::forget(const Range& range) {
  each(range, [](Cell& cell, int64_t, int64_t) { cell.home = cell.staging = false; });
}

bool Residence::at_home(const Range& range) {
  bool all = true;
  each(range, [&](Cell& cell, int64_t, int64_t) { all &= cell.home || !cell.staging; });
  return all;
}

// Copies home what only staging has; neighbours in one block by one copy.
void Residence::update(const Range& range) {
  Range stale = range.within(0, 0);
  int from = -1;
  const auto copy = [&] {
    if (stale.count == 0) return;
    use_home(stale);
    copy_(in_staging(blocks_[from], stale), stale);
  };
  each(range, [&](Cell& cell, int64_t begin, int64_t end) {
    if (cell.home || !cell.staging) return;
    if (cell.block != from || stale.end() != begin) {
      copy();
      stale = range.within(begin, begin);
      from = cell.block;
    }
    stale = range.within(stale.offset, end);
    cell.home = true;
  });
  copy();
}

// The block that stands for all of a range. One that stands for a part of it is given up.
int Residence::block_for(const Range& range) {
  std::vector<int> overlapping;
  each(range, [&](Cell& cell, int64_t, int64_t) {
    if (cell.block >= 0) overlapping.push_back(cell.block);
  });
  int found = -1;
  for (int block : overlapping) {
    if (contains(blocks_[block].home, range)) {
      found = block;
    } else {
      release(block);
    }
  }
  if (found < 0) {
    found = allocate(range.bytes());
    blocks_[found].home = range;
    each(range, [found](Cell& cell, int64_t, int64_t) { cell.block = found; });
  }
  blocks_[found].used = step_;
  return found;
}

int Residence::allocate(int64_t bytes) {
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
      if (older && reusable(blocks_[i])) oldest = i;
    }
  }
  if (oldest >= 0 && large_enough >= kLeastBlocks) {
    release(oldest);
    return oldest;
  }
  blocks_.push_back({staging_bytes_, capacity, {}, step_});
  staging_bytes_ += capacity;
  return static_cast<int>(blocks_.size()) - 1;
}

// Scratch that is received and then used up shall never need memory of the device.
bool Residence::reusable(const Block& block) {
  if (block.used == step_) return false;
  return block.home.space != Space::scratch || at_home(block.home);
}

void Residence::release(int block) {
  const Range range = blocks_[block].home;
  if (range.count == 0) return;
  update(range);
  each(range, [](Cell& cell, int64_t, int64_t) {
    cell.staging = false;
    cell.block = -1;
  });
  blocks_[block].home.count = 0;
}

void Residence::use_home(const Range& range) {
  if (range.space == Space::scratch && range.count > 0) {
    scratch_bytes_ = std::max(scratch_bytes_, range.end());
  }
}

Range Residence::in_staging(const Block& block, const Range& range) const {
  return {Space::staging, block.offset + range.offset - block.home.offset, range.count,
          range.dtype};
}

}  // namespace hetcomm
