#include <algorithm>
#include <cstring>

#include "device/reduce.h"
#include "island/shm/copy.h"
#include "island/shm/exchange.h"

namespace hetcomm::shm {
namespace {

// Up to this many bytes over all members, a second round costs more than the reduction of
// everything on every member.
constexpr int64_t kSmallBytes = 64 << 10;
// Two members move no more bytes that way, and save rounds. From 1 MiB on rounds cost little, and
// both members would read all of both buffers.
constexpr int64_t kSmallOfTwo = 512 << 10;
// Least chunks of a large call, so that publishing overlaps with reducing; fewer if parts would be
// smaller than kSmallestPart.
constexpr int64_t kChunks = 4;

constexpr auto kIntoTargets = [](const IslandPiece& piece, int64_t offset, int64_t) {
  return piece.target + offset;
};

}  // namespace

void reduce_all(const IslandCall& call, std::byte* target, const std::vector<const void*>& sources,
                int64_t bytes) {
  const int members = static_cast<int>(sources.size());
  const size_t count = static_cast<size_t>(bytes) / size_of(call.dtype);
  if (call.op == ReduceOp::average) {
    const Scale scale{static_cast<double>(members), true};
    scaled_sum(call.dtype, scale, target, sources.data(), members, count);
  } else {
    reduce(call.dtype, call.op, target, sources.data(), members, count);
  }
}

Reducing::Reducing(int member, int members, int64_t slot_bytes)
    : Exchange(member, members, slot_bytes), parts_(members), sources_(members) {}

template <typename Target>
void Reducing::combine(const PieceList& list, int64_t begin, int64_t end,
                       const std::byte* const* others, Target target) {
  list.visit(begin, end, [&](const IslandPiece& piece, int64_t offset, int64_t at, int64_t bytes) {
    for (int member = 0; member < members_; ++member) {
      sources_[member] = member == member_ ? piece.source + offset : others[member] + at;
    }
    reduce_all(*call_, target(piece, offset, at), sources_, bytes);
  });
}

ReduceScatter::ReduceScatter(int member, int members, int64_t slot_bytes)
    : Reducing(member, members, slot_bytes), by_owner_(members), position_(members) {}

void ReduceScatter::prepare(const IslandCall& call) {
  call_ = &call;
  const size_t element_bytes = size_of(call.dtype);
  for (PieceList& list : by_owner_) list.clear();
  for (const IslandPiece& piece : call.pieces) by_owner_[piece.to].add(piece, element_bytes);
  int owners = 0;
  int64_t longest = 0;
  for (int owner = 0; owner < members_; ++owner) {
    position_[owner] = owners;
    if (by_owner_[owner].bytes() > 0) ++owners;
    longest = std::max(longest, by_owner_[owner].bytes());
  }
  // If all members are owners, each slot has parts for the other members only.
  width_ = part_of_slot(owners == members_ ? owners - 1 : owners);
  set_rounds(longest, width_);
  const int64_t others = owners - (by_owner_[member_].bytes() > 0);
  extent_ = others == 0 ? 0 : (others - 1) * width_ + std::min(longest, width_);
}

int64_t ReduceScatter::offset(int from, int owner) const {
  const bool passed_itself = owner > from && by_owner_[from].bytes() > 0;
  return (position_[owner] - passed_itself) * width_;
}

void ReduceScatter::publish(int64_t round, std::byte* slot) {
  for (int owner = 0; owner < members_; ++owner) {
    if (owner == member_) continue;
    by_owner_[owner].gather(round * width_, (round + 1) * width_, slot + offset(member_, owner));
  }
}

void ReduceScatter::read(int64_t round, const std::byte* const* slots) {
  if (by_owner_[member_].bytes() == 0) return;
  for (int member = 0; member < members_; ++member) {
    parts_[member] = slots[member] + offset(member, member_);
  }
  combine(by_owner_[member_], round * width_, (round + 1) * width_, parts_.data(), kIntoTargets);
}

AllReduce::AllReduce(int member, int members, int64_t slot_bytes)
    : Reducing(member, members, slot_bytes) {}

void AllReduce::prepare(const IslandCall& call) {
  call_ = &call;
  const size_t element_bytes = size_of(call.dtype);
  pieces_.clear();
  for (const IslandPiece& piece : call.pieces) pieces_.add(piece, element_bytes);
  const int64_t bytes = pieces_.bytes();
  small_ = members_ == 2 ? bytes <= kSmallOfTwo
                         : bytes <= slot_bytes_ && bytes * members_ <= kSmallBytes;
  if (small_) {
    chunk_ = part_of_slot(1);
    set_rounds(bytes, chunk_);
    extent_ = members_ > 1 ? std::min(bytes, chunk_) : 0;
    return;
  }
  const int64_t wanted = std::max(kSmallestPart, round_up(bytes / (kChunks * members_)));
  width_ = std::min(part_of_slot(members_ - 1), wanted);
  chunk_ = width_ * members_;
  chunks_ = (bytes + chunk_ - 1) / chunk_;
  rounds_ = 2 * chunks_;
  extent_ = std::max(members_ - 1, 1) * width_;
  past_caches_ = 2 * members_ * bytes > kCache &&
                 std::all_of(call.pieces.begin(), call.pieces.end(),
                             [](const IslandPiece& piece) { return piece.source != piece.target; });
  if (!past_caches_) return;
  for (std::vector<std::byte>& kept : kept_) kept.resize(static_cast<size_t>(width_));
}

AllReduce::Stage AllReduce::stage(int64_t round) const {
  if (round == 0) return {false, 0};
  if (round == rounds_ - 1) return {true, chunks_ - 1};
  return round % 2 == 1 ? Stage{false, (round + 1) / 2} : Stage{true, round / 2 - 1};
}

Bounds AllReduce::part(int64_t chunk, int owner) const {
  const int64_t begin = chunk * chunk_;
  return shm::part({begin, std::min(begin + chunk_, pieces_.bytes())}, owner, members_);
}

int64_t AllReduce::needs(int64_t round) const {
  if (small_) return 0;
  const Stage at = stage(round);
  if (!at.gathers) return 0;
  return at.chunk == 0 ? 1 : 2 * at.chunk;  // one past the round that reduced the chunk
}

void AllReduce::publish(int64_t round, std::byte* slot) {
  if (small_) {
    if (members_ > 1) pieces_.gather(round * chunk_, (round + 1) * chunk_, slot);
    return;
  }
  const Stage at = stage(round);
  if (at.gathers) {
    const Bounds mine = part(at.chunk, member_);
    if (past_caches_) {
      std::memcpy(slot, kept_[at.chunk % 2].data(), static_cast<size_t>(mine.end - mine.begin));
    } else {
      pieces_.gather_targets(mine.begin, mine.end, slot);
    }
    return;
  }
  for (int owner = 0; owner < members_; ++owner) {
    if (owner == member_) continue;
    const Bounds bounds = part(at.chunk, owner);
    pieces_.gather(bounds.begin, bounds.end, slot + offset(member_, owner));
  }
}

void AllReduce::read(int64_t round, const std::byte* const* slots) {
  if (small_) {
    combine(pieces_, round * chunk_, (round + 1) * chunk_, slots, kIntoTargets);
    return;
  }
  const Stage at = stage(round);
  if (at.gathers) {
    for (int owner = 0; owner < members_; ++owner) {
      if (owner == member_) continue;
      const Bounds bounds = part(at.chunk, owner);
      if (past_caches_) {
        pieces_.scatter_past_caches(bounds.begin, bounds.end, slots[owner]);
      } else {
        pieces_.scatter(bounds.begin, bounds.end, slots[owner]);
      }
    }
    return;
  }
  for (int member = 0; member < members_; ++member) {
    parts_[member] = slots[member] + offset(member, member_);
  }
  const Bounds mine = part(at.chunk, member_);
  if (!past_caches_) {
    return combine(pieces_, mine.begin, mine.end, parts_.data(), kIntoTargets);
  }
  // Chunk i is published before chunk i + 2 is reduced, so two copies are enough.
  std::byte* kept = kept_[at.chunk % 2].data();
  combine(pieces_, mine.begin, mine.end, parts_.data(),
          [kept](const IslandPiece&, int64_t, int64_t at) { return kept + at; });
  pieces_.scatter_past_caches(mine.begin, mine.end, kept);
}

}  // namespace hetcomm::shm
