#include "island/shm/direct.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "island/shm/arena.h"
#include "island/shm/copy.h"

namespace hetcomm::shm {
namespace {

// A call is worth its rounds from this many bytes per member of the largest buffer. Measured with 2
// and 4 members on 2 cores. An all_reduce takes one round more: with 2 members 256 KiB are no
// faster than through slots, 512 KiB take 18 us instead of 21.
constexpr int64_t kSmallest = 64 << 10;
constexpr int64_t kSmallestAllReduce = 4 * kSmallest;
// A member's part of a round, at most: a reduced part stays in the second-level cache until members
// gather it.
constexpr int64_t kLargestPart = 128 << 10;
// Moves have several rounds only to give other work its turn.
constexpr int64_t kMoveWidth = 1 << 20;
// Members stop offering after this many failed offers in a row.
constexpr int kOffers = 8;

using Ranges = std::vector<std::pair<const std::byte*, const std::byte*>>;

// Sorts ranges, and joins ranges that touch or overlap.
void merge(Ranges& ranges) {
  std::sort(ranges.begin(), ranges.end());
  size_t last = 0;
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first <= ranges[last].second) {
      ranges[last].second = std::max(ranges[last].second, ranges[i].second);
    } else {
      ranges[++last] = ranges[i];
    }
  }
  if (!ranges.empty()) ranges.resize(last + 1);
}

// Whether two lists of merged ranges overlap.
bool overlap(const Ranges& first, const Ranges& second) {
  for (size_t i = 0, j = 0; i < first.size() && j < second.size();) {
    if (first[i].second <= second[j].first) {
      ++i;
    } else if (second[j].second <= first[i].first) {
      ++j;
    } else {
      return true;
    }
  }
  return false;
}

bool all_reduces(const IslandCall& call) { return call.reduces && call.to_all; }

}  // namespace

Direct::Direct(const ShmOptions& options, int64_t slot_bytes, PeerMemory& peers)
    : Exchange(options.member, options.members, slot_bytes),
      options_(options),
      peers_(peers),
      incoming_(options.members),
      sources_(options.members) {}

bool Direct::reads(const IslandCall& call, const IslandPiece& piece) const {
  return piece.count > 0 && (call.reduces || piece.from == member_);
}

bool Direct::writes(const IslandCall& call, const IslandPiece& piece) const {
  const bool own = reads(call, piece) && piece.source == piece.target;
  const bool gets = call.to_all || piece.to == member_;
  // A move in place writes nothing; a reduction in place does.
  return piece.count > 0 && gets && piece.target != nullptr && (call.reduces || !own);
}

bool Direct::suits(const IslandCall& call) const {
  if (members_ == 1 || !peers_.usable()) return false;
  int64_t count = 0;
  for (const IslandPiece& piece : call.pieces) count += piece.count;
  if (!call.reduces && !call.to_all) count /= members_;
  const int64_t least = members_ * (all_reduces(call) ? kSmallestAllReduce : kSmallest);
  return count * static_cast<int64_t>(size_of(call.dtype)) >= least &&
         static_cast<int64_t>(sizeof(uint64_t) + sizeof(Offsets) * call.pieces.size()) <=
             slot_bytes_;
}

bool Direct::shared(const IslandCall& call) {
  const Arena& arena = Arena::mine();
  const auto element_bytes = static_cast<int64_t>(size_of(call.dtype));
  Ranges sources, targets;
  for (const IslandPiece& piece : call.pieces) {
    const int64_t bytes = piece.count * element_bytes;
    const bool is_read = reads(call, piece), is_written = writes(call, piece);
    if (is_read && !arena.holds(piece.source, bytes)) return false;
    if (is_written && !arena.holds(piece.target, bytes)) return false;
    if (is_read) sources.emplace_back(piece.source, piece.source + bytes);
    // A piece that is reduced in place has one reader, which then writes the piece.
    if (is_written && !(is_read && piece.source == piece.target)) {
      targets.emplace_back(piece.target, piece.target + bytes);
    }
  }
  // Sources must stay until all members have read them. Slots would allow overlap.
  merge(sources);
  merge(targets);
  return !overlap(sources, targets) && peers_.map();
}

void Direct::learn(bool shared_by_all) {
  if (shared_by_all) offers_left_ = kOffers;
}

void Direct::prepare(const IslandCall& call) {
  call_ = &call;
  element_bytes_ = static_cast<int64_t>(size_of(call.dtype));
  failure_ = Status();
  agreed_ = false;
  rounds_ = 2;  // until read() knows whether all agree
  extent_ = static_cast<int64_t>(sizeof(uint64_t) + sizeof(Offsets) * call.pieces.size());
}

int64_t Direct::needs(int64_t round) const {
  if (round == 0) return 0;
  if (!agreed_) return 1 + fallback_->needs(round - 1);
  const bool closes = all_reduces(*call_) && round == rounds_ - 1;
  return closes ? round : 1;
}

void Direct::publish(int64_t round, std::byte* slot) {
  if (round == 0) return write_offer(slot);
  if (!agreed_) return fallback_->publish(round - 1, slot);
  const int64_t chunk = round - 1;
  if (!call_->reduces) {
    move(chunk * width_, (chunk + 1) * width_);
  } else if (!call_->to_all) {
    combine(chunk * width_, (chunk + 1) * width_);
  } else if (chunk < chunks_) {
    const Bounds mine = part(chunk, member_);
    combine(mine.begin, mine.end);
  }
}

void Direct::read(int64_t round, const std::byte* const* slots) {
  if (round > 0) {
    if (!agreed_) return fallback_->read(round - 1, slots);
    if (all_reduces(*call_) && round <= chunks_) gather(round - 1);
    return;
  }
  agreed_ = all_willing(slots);
  if (!agreed_) {
    --offers_left_;
    fallback_->prepare(*call_);
    rounds_ = 1 + fallback_->rounds();
    extent_ = fallback_->extent();
    return;
  }
  offers_left_ = kOffers;
  ++calls_;
  resolve(slots);
  divide_into_rounds();
}

// Writes whether this member is willing, then the offsets of every piece.
void Direct::write_offer(std::byte* slot) const {
  const Arena& arena = Arena::mine();
  const uint64_t willing = shared_;
  std::memcpy(slot, &willing, sizeof willing);
  slot += sizeof willing;
  if (!shared_) return;
  for (const IslandPiece& piece : call_->pieces) {
    const Offsets offsets{reads(*call_, piece) ? arena.offset(piece.source) : 0,
                          writes(*call_, piece) ? arena.offset(piece.target) : 0};
    std::memcpy(slot, &offsets, sizeof offsets);
    slot += sizeof offsets;
  }
}

bool Direct::all_willing(const std::byte* const* slots) const {
  return std::all_of(slots, slots + members_, [](const std::byte* slot) {
    uint64_t willing;
    std::memcpy(&willing, slot, sizeof willing);
    return willing != 0;
  });
}

const std::byte* Direct::address_of(int member, uint64_t offset, int64_t bytes) {
  return failure_.ok() ? peers_.at(member, offset, bytes, failure_) : nullptr;
}

void Direct::resolve(const std::byte* const* slots) {
  const size_t pieces = call_->pieces.size();
  addresses_.assign(pieces * members_, Addresses{});
  for (int member = 0; member < members_; ++member) {
    const std::byte* offer = slots[member] + sizeof(uint64_t);
    for (size_t i = 0; i < pieces; ++i, offer += sizeof(Offsets)) {
      const IslandPiece& piece = call_->pieces[i];
      Addresses& found = addresses_[member * pieces + i];
      if (member == member_) {
        found = {piece.source, piece.target};
        continue;
      }
      const int64_t bytes = piece.count * element_bytes_;
      Offsets offsets;
      std::memcpy(&offsets, offer, sizeof offsets);
      const bool is_source = call_->reduces || piece.from == member;
      if (is_source) found.source = address_of(member, offsets.source, bytes);
      if (all_reduces(*call_)) {
        found.target = address_of(member, offsets.target, bytes);
      }
    }
  }
}

void Direct::divide_into_rounds() {
  for (PieceList& list : incoming_) list.clear();
  std::vector<int64_t> bytes(members_);
  for (const IslandPiece& piece : call_->pieces) {
    for (int member = 0; member < members_; ++member) {
      if (!call_->to_all && piece.to != member) continue;
      bytes[member] += piece.count * element_bytes_;
      if (member != member_) continue;
      if (call_->reduces) {
        incoming_[0].add(piece, element_bytes_);
      } else if (writes(*call_, piece)) {
        incoming_[piece.from].add(piece, element_bytes_);
      }
    }
  }
  const int64_t most = *std::max_element(bytes.begin(), bytes.end());
  past_caches_ = 2 * members_ * most > kCache;
  if (all_reduces(*call_)) {
    width_ = std::clamp(round_up(most / members_), kSmallestPart, kLargestPart);
    chunks_ = (most + width_ * members_ - 1) / (width_ * members_);
    rounds_ = 1 + chunks_ + 1;
    return;
  }
  width_ = call_->reduces ? 2 * kLargestPart : kMoveWidth;
  rounds_ = 1 + std::max<int64_t>(1, (most + width_ - 1) / width_);
}

void Direct::copy(std::byte* target, const std::byte* source, int64_t bytes) const {
  if (past_caches_) {
    copy_past_caches(target, source, static_cast<size_t>(bytes));
  } else {
    std::memcpy(target, source, static_cast<size_t>(bytes));
  }
}

Direct::Addresses& Direct::addresses(int member, const IslandPiece& piece) {
  const size_t pieces = call_->pieces.size();
  return addresses_[member * pieces + static_cast<size_t>(&piece - call_->pieces.data())];
}

// Each member begins with another member's pieces and ends with its own.
void Direct::move(int64_t begin, int64_t end) {
  int64_t at = 0;
  for (int step = 1; step <= members_ && failure_.ok(); ++step) {
    const int from = (member_ + step) % members_;
    const PieceList& list = incoming_[from];
    const int64_t first = std::max<int64_t>(0, begin - at);
    at += list.bytes();
    if (first >= list.bytes() || at - list.bytes() >= end) continue;
    list.visit(first, end - (at - list.bytes()),
               [&](const IslandPiece& piece, int64_t offset, int64_t, int64_t bytes) {
                 copy(piece.target + offset, addresses(from, piece).source + offset, bytes);
               });
  }
}

void Direct::combine(int64_t begin, int64_t end) {
  if (!failure_.ok()) return;
  incoming_[0].visit(begin, end,
                     [&](const IslandPiece& piece, int64_t offset, int64_t, int64_t bytes) {
                       for (int member = 0; member < members_; ++member) {
                         sources_[member] = addresses(member, piece).source + offset;
                       }
                       reduce_all(*call_, piece.target + offset, sources_, bytes);
                     });
}

Bounds Direct::part(int64_t chunk, int owner) const {
  const int64_t begin = chunk * width_ * members_;
  const int64_t end = std::min(begin + width_ * members_, incoming_[0].bytes());
  return shm::part({begin, end}, owner, members_);
}

void Direct::gather(int64_t chunk) {
  if (!failure_.ok()) return;
  for (int step = 1; step < members_; ++step) {
    const int owner = (member_ + step) % members_;
    const Bounds bounds = part(chunk, owner);
    incoming_[0].visit(bounds.begin, bounds.end,
                       [&](const IslandPiece& piece, int64_t offset, int64_t, int64_t bytes) {
                         copy(piece.target + offset, addresses(owner, piece).target + offset,
                              bytes);
                       });
  }
}

}  // namespace hetcomm::shm
