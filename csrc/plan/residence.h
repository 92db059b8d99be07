#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "plan/plan.h"

namespace hetcomm {

// Where the current values of one rank with device memory lie while its steps are lowered: at home,
// in staging, in both, or nowhere if nothing needs them. Staging is handed out in blocks, each of
// which stands for one contiguous range of home; once they exceed a bound, the least recently used
// one is given to another range. All ranges named here are of home. Use once, on one thread.
class Residence {
 public:
  // `copy` is called for every copy between home and staging that is needed, in serial order.
  // `bound` is in bytes.
  using Copy = std::function<void(const Range& source, const Range& target)>;
  Residence(int64_t bound, Copy copy);

  // Where in staging to read it, or to write it: the old value is lost.
  Range fetch(const Range& range);
  Range place(const Range& range);
  // Before a step reads it at home; before one writes it there.
  void read_home(const Range& range);
  void write_home(const Range& range);
  // Nothing reads the value any more.
  void forget(const Range& range);
  // What fetch() and place() gave for the step before may be reused from now on.
  void next_step() { ++step_; }

  bool at_home(const Range& range);  // without a copy
  int64_t staging_bytes() const { return staging_bytes_; }
  int64_t scratch_bytes() const { return scratch_bytes_; }  // what is ever used of it at home

 private:
  struct Cell {
    bool home = false, staging = false;  // who has the value
    int block = -1;                      // what stands for it, -1 if none
  };
  using Cells = std::map<int64_t, Cell>;  // by first byte; each ends where the next begins
  struct Block {
    int64_t offset, capacity;  // bytes
    Range home;                // empty if it stands for nothing
    int64_t used;              // the last step that did
  };

  Cells& cells(const Range& range) { return cells_[static_cast<int>(range.space)]; }
  template <typename Visit>
  void each(const Range& range, const Visit& visit);
  void update(const Range& range);
  int block_for(const Range& range);
  int allocate(int64_t bytes);
  bool reusable(const Block& block);
  void release(int block);
  void use_home(const Range& range);
  Range in_staging(const Block& block, const Range& range) const;

  int64_t bound_;
  Copy copy_;
  Cells cells_[3];  // by Space
  std::vector<Block> blocks_;
  int64_t step_ = 0, staging_bytes_ = 0, scratch_bytes_ = 0;
};

}  // namespace hetcomm
