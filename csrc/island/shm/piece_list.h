#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "island/island.h"

namespace hetcomm::shm {

// Pieces of a call as one range of bytes, end to end. Cleared and filled again for each call, so
// that a call allocates nothing once its lane is warm.
class PieceList {
 public:
  void clear() {
    parts_.clear();
    bytes_ = 0;
  }
  void add(const IslandPiece& piece, size_t element_bytes) {
    if (piece.count == 0) return;
    parts_.push_back({&piece, bytes_});
    bytes_ += piece.count * static_cast<int64_t>(element_bytes);
  }
  int64_t bytes() const { return bytes_; }

  // Calls visit(piece, offset in the piece, offset from begin, bytes) for each part of [begin, end)
  // that exists.
  template <typename Visit>
  void visit(int64_t begin, int64_t end, Visit visit) const {
    end = std::min(end, bytes_);
    if (begin >= end) return;
    const int64_t origin = begin;
    auto part = std::upper_bound(parts_.begin(), parts_.end(), begin,
                                 [](int64_t at, const Part& part) { return at < part.begin; });
    for (--part; begin < end; ++part) {
      const auto next = part + 1;
      const int64_t until = std::min(end, next == parts_.end() ? bytes_ : next->begin);
      visit(*part->piece, begin - part->begin, begin - origin, until - begin);
      begin = until;
    }
  }

  // Copies the sources of [begin, end) to `out`.
  void gather(int64_t begin, int64_t end, std::byte* out) const;
  // Copies the targets of [begin, end) to `out`.
  void gather_targets(int64_t begin, int64_t end, std::byte* out) const;
  // Copies `in` to the targets of [begin, end).
  void scatter(int64_t begin, int64_t end, const std::byte* in) const;
  // The same with copy_past_caches().
  void scatter_past_caches(int64_t begin, int64_t end, const std::byte* in) const;
  // Copies the sources of [begin, end) to the targets, except where both are the same memory.
  void copy(int64_t begin, int64_t end) const;

 private:
  struct Part {
    const IslandPiece* piece;
    int64_t begin;
  };
  std::vector<Part> parts_;
  int64_t bytes_ = 0;
};

}  // namespace hetcomm::shm
