#include <algorithm>

#include "island/shm/exchange.h"

namespace hetcomm::shm {

AllGather::AllGather(int member, int members, int64_t slot_bytes)
    : Exchange(member, members, slot_bytes), by_owner_(members) {}

void AllGather::prepare(const IslandCall& call) {
  for (PieceList& list : by_owner_) list.clear();
  for (const IslandPiece& piece : call.pieces) {
    by_owner_[piece.from].add(piece, size_of(call.dtype));
  }
  int64_t longest = 0;
  for (const PieceList& list : by_owner_) longest = std::max(longest, list.bytes());
  set_rounds(longest, slot_bytes_);
  extent_ = std::min(slot_bytes_, by_owner_[member_].bytes());
}

void AllGather::publish(int64_t round, std::byte* slot) {
  const int64_t begin = round * slot_bytes_;
  if (members_ > 1) by_owner_[member_].gather(begin, begin + slot_bytes_, slot);
  by_owner_[member_].copy(begin, begin + slot_bytes_);
}

void AllGather::read(int64_t round, const std::byte* const* slots) {
  const int64_t begin = round * slot_bytes_;
  for (int from = 0; from < members_; ++from) {
    if (from != member_) by_owner_[from].scatter(begin, begin + slot_bytes_, slots[from]);
  }
}

AllToAll::AllToAll(int member, int members, int64_t slot_bytes)
    : Exchange(member, members, slot_bytes),
      outgoing_(members),
      incoming_(members),
      bytes_(size_t(members) * members),
      width_(members),
      offset_(members) {}

void AllToAll::prepare(const IslandCall& call) {
  for (PieceList& list : outgoing_) list.clear();
  for (PieceList& list : incoming_) list.clear();
  std::fill(bytes_.begin(), bytes_.end(), 0);
  const size_t element_bytes = size_of(call.dtype);
  for (const IslandPiece& piece : call.pieces) {
    bytes(piece.from, piece.to) += piece.count * static_cast<int64_t>(element_bytes);
    if (piece.from == member_) outgoing_[piece.to].add(piece, element_bytes);
    if (piece.to == member_) incoming_[piece.from].add(piece, element_bytes);
  }
  rounds_ = 1;
  for (int from = 0; from < members_; ++from) {
    int64_t receivers = 0, before_me = 0, longest = 0;
    for (int to = 0; to < members_; ++to) {
      if (bytes(from, to) == 0) continue;
      longest = std::max(longest, bytes(from, to));
      if (to == from) continue;
      ++receivers;
      if (to < member_) ++before_me;
    }
    width_[from] = part_of_slot(receivers);
    offset_[from] = before_me * width_[from];
    rounds_ = std::max(rounds_, (longest + width_[from] - 1) / width_[from]);
    if (from == member_)
      extent_ =
          receivers == 0 ? 0 : (receivers - 1) * width_[from] + std::min(longest, width_[from]);
  }
}

void AllToAll::publish(int64_t round, std::byte* slot) {
  const int64_t width = width_[member_];
  const int64_t begin = round * width;
  for (int to = 0; to < members_; ++to) {
    const PieceList& list = outgoing_[to];
    if (list.bytes() == 0) continue;
    if (to == member_) {
      list.copy(begin, begin + width);
    } else {
      list.gather(begin, begin + width, slot);
      slot += width;
    }
  }
}

void AllToAll::read(int64_t round, const std::byte* const* slots) {
  for (int from = 0; from < members_; ++from) {
    if (from == member_) continue;
    const int64_t begin = round * width_[from];
    incoming_[from].scatter(begin, begin + width_[from], slots[from] + offset_[from]);
  }
}

}  // namespace hetcomm::shm
