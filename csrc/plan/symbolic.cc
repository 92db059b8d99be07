#include "plan/symbolic.h"

#include <algorithm>
#include <cstddef>

#include "codec/codec.h"

namespace hetcomm {
namespace {

uint64_t key(int a, int b) { return static_cast<uint64_t>(a) << 32 | static_cast<uint32_t>(b); }

}  // namespace

Terms::Terms(int ranks)
    : ranks_(ranks), words_((ranks + 63) / 64), sets_(words_ * ranks, 0), terms_(ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    sets_[rank * words_ + rank / 64] |= uint64_t{1} << (rank % 64);
  }
}

int Terms::sum(int a, int b, Kind kind) {
  auto& known = known_[static_cast<int>(kind)];
  const auto found = known.find(key(a, b));
  if (found != known.end()) return found->second;
  if (scaled(a) != scaled(b) || encoded(a) || encoded(b)) return none;
  for (size_t i = 0; i < words_; ++i) {
    if (sets_[a * words_ + i] & sets_[b * words_ + i]) return none;
  }
  const int term = static_cast<int>(terms_.size());
  for (size_t i = 0; i < words_; ++i) {
    sets_.push_back(sets_[a * words_ + i] | sets_[b * words_ + i]);
  }
  terms_.push_back({.scaled = scaled(a), .roundings = std::max(roundings(a), roundings(b))});
  known.emplace(key(a, b), term);
  return term;
}

int Terms::scale(int term, Kind kind) {
  if (scaled(term) || encoded(term)) return none;
  auto& known = known_[static_cast<int>(kind)];
  const auto [place, is_new] = known.emplace(key(term, none), static_cast<int>(terms_.size()));
  if (is_new) add_like(term, {.scaled = true, .roundings = roundings(term)});
  return place->second;
}

int Terms::encode(int term, const Codec* codec, const void* step) {
  if (encoded(term) || codec == nullptr) return none;
  const bool lossless = codec->lossless();
  const auto known = encoded_.find({term, codec, lossless ? nullptr : step});
  if (known != encoded_.end()) return known->second;
  int decoded = term;
  if (!lossless) {
    decoded = static_cast<int>(terms_.size());
    add_like(term,
             {.scaled = scaled(term), .roundings = roundings(term) + 1, .original = exact(term)});
  }
  const int encoded = static_cast<int>(terms_.size());
  add_like(term, {.scaled = scaled(term),
                  .roundings = roundings(decoded),
                  .decoded = decoded,
                  .codec = codec});
  encoded_[{term, codec, lossless ? nullptr : step}] = encoded;
  return encoded;
}

int Terms::exact(int term) const {
  return terms_[term].original == none ? term : terms_[term].original;
}

int Terms::decode(int term, const Codec* codec) const {
  return terms_[term].codec == codec ? terms_[term].decoded : none;
}

void Terms::add_like(int term, const Term& added) {
  const std::vector<uint64_t> same = set(term);
  sets_.insert(sets_.end(), same.begin(), same.end());
  terms_.push_back(added);
}

std::vector<uint64_t> Terms::set(int term) const {
  return {sets_.begin() + term * words_, sets_.begin() + (term + 1) * words_};
}

bool Terms::all_ranks(int term) const {
  int count = 0;
  for (uint64_t word : set(term)) count += __builtin_popcountll(word);
  return count == ranks_ && !encoded(term);
}

std::string Terms::shared(int a, int b) const {
  std::vector<uint64_t> both = set(a), other = set(b);
  for (size_t i = 0; i < words_; ++i) both[i] &= other[i];
  return list(both);
}

std::string Terms::ranks(int term) const { return list(set(term)); }

std::string Terms::list(const std::vector<uint64_t>& set) const {
  const auto has = [&](int rank) { return rank < ranks_ && set[rank / 64] >> (rank % 64) & 1; };
  std::string text;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (!has(rank)) continue;
    const int begin = rank;
    while (has(rank + 1)) ++rank;
    if (!text.empty()) text += ", ";
    text += std::to_string(begin);
    if (rank > begin) text.append("-").append(std::to_string(rank));
  }
  return "{" + text + "}";
}

void append(Extents& extents, const Extent& extent) {
  if (extent.begin == extent.end) return;
  if (!extents.empty()) {
    Extent& last = extents.back();
    const bool continues = last.index + (last.end - last.begin) == extent.index;
    if (last.end == extent.begin && last.term == extent.term &&
        (continues || extent.term == Terms::none)) {
      last.end = extent.end;
      return;
    }
  }
  extents.push_back(extent);
}

void SymbolicMemory::read(int64_t offset, int64_t count, Extents& value) const {
  value.clear();
  const int64_t end = offset + count;
  auto extent = std::upper_bound(extents_.begin(), extents_.end(), offset,
                                 [](int64_t at, const Extent& each) { return at < each.end; });
  int64_t at = offset;
  for (; at < end && extent != extents_.end() && extent->begin < end; ++extent) {
    if (extent->begin > at) append(value, {at - offset, extent->begin - offset, 0, Terms::none});
    const int64_t begin = std::max(extent->begin, at);
    at = std::min(extent->end, end);
    append(value,
           {begin - offset, at - offset, extent->index + (begin - extent->begin), extent->term});
  }
  if (at < end) append(value, {at - offset, count, 0, Terms::none});
}

void SymbolicMemory::write(int64_t offset, const Extents& value) {
  if (value.empty()) return;
  const int64_t end = offset + value.back().end;
  // Adjoining neighbours are replaced too: the value may continue them.
  const auto first = std::lower_bound(extents_.begin(), extents_.end(), offset,
                                      [](const Extent& each, int64_t at) { return each.end < at; });
  auto last = first;
  while (last != extents_.end() && last->begin <= end) ++last;
  Extents replacement;
  if (first != last && first->begin < offset) {
    append(replacement, {first->begin, std::min(first->end, offset), first->index, first->term});
  }
  for (const Extent& extent : value) {
    if (extent.term == Terms::none) continue;
    append(replacement, {offset + extent.begin, offset + extent.end, extent.index, extent.term});
  }
  if (first != last && (last - 1)->end > end) {
    const Extent& tail = *(last - 1);
    const int64_t begin = std::max(tail.begin, end);
    append(replacement, {begin, tail.end, tail.index + (begin - tail.begin), tail.term});
  }
  const auto common = std::min<std::ptrdiff_t>(last - first, replacement.size());
  std::copy(replacement.begin(), replacement.begin() + common, first);
  if (common < last - first) {
    extents_.erase(first + common, last);
  } else {
    extents_.insert(last, replacement.begin() + common, replacement.end());
  }
}

}  // namespace hetcomm
