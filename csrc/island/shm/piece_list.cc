#include "island/shm/piece_list.h"

#include "island/shm/copy.h"

namespace hetcomm::shm {

void PieceList::gather(int64_t begin, int64_t end, std::byte* out) const {
  visit(begin, end, [out](const IslandPiece& piece, int64_t offset, int64_t at, int64_t bytes) {
    std::memcpy(out + at, piece.source + offset, bytes);
  });
}

void PieceList::gather_targets(int64_t begin, int64_t end, std::byte* out) const {
  visit(begin, end, [out](const IslandPiece& piece, int64_t offset, int64_t at, int64_t bytes) {
    std::memcpy(out + at, piece.target + offset, bytes);
  });
}

void PieceList::scatter(int64_t begin, int64_t end, const std::byte* in) const {
  visit(begin, end, [in](const IslandPiece& piece, int64_t offset, int64_t at, int64_t bytes) {
    std::memcpy(piece.target + offset, in + at, bytes);
  });
}

void PieceList::scatter_past_caches(int64_t begin, int64_t end, const std::byte* in) const {
  visit(begin, end, [in](const IslandPiece& piece, int64_t offset, int64_t at, int64_t bytes) {
    copy_past_caches(piece.target + offset, in + at, static_cast<size_t>(bytes));
  });
}

void PieceList::copy(int64_t begin, int64_t end) const {
  visit(begin, end, [](const IslandPiece& piece, int64_t offset, int64_t, int64_t bytes) {
    if (piece.source == piece.target || piece.target == nullptr) return;
    std::memcpy(piece.target + offset, piece.source + offset, bytes);
  });
}

}  // namespace hetcomm::shm
