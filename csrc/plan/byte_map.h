#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

#include "plan/plan.h"

namespace hetcomm {

// A value for each byte of one buffer, in cells that cover the buffer from 0 on.
template <typename Value>
class ByteMap {
 public:
  explicit ByteMap(Value all = Value()) { cells_.emplace(0, std::move(all)); }

  // Calls visit(value, begin, end) for the cells of a range, cut at its ends.
  template <typename Visit>
  void each(const Range& range, const Visit& visit) {
    if (range.count == 0) return;
    const auto end = cut(range.end());
    for (auto cell = cut(range.offset); cell != end; ++cell) {
      visit(cell->second, cell->first, std::next(cell)->first);
    }
  }

  // Makes the range one cell.
  void assign(const Range& range, Value value) {
    if (range.count == 0) return;
    const auto end = cut(range.end()), begin = cut(range.offset);
    begin->second = std::move(value);
    cells_.erase(std::next(begin), end);
  }

 private:
  using Cells = std::map<int64_t, Value>;  // by first byte; each ends where the next begins

  // The cell that begins at this byte.
  typename Cells::iterator cut(int64_t at) {
    const auto cell = std::prev(cells_.upper_bound(at));
    if (cell->first == at) return cell;
    return cells_.emplace_hint(std::next(cell), at, Value(cell->second));
  }

  Cells cells_;
};

}  // namespace hetcomm
