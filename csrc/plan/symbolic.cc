#include "plan/symbolic.h"

#include <algorithm>
#include <cstddef>

namespace hetcomm {
namespace {

uint64_t key(int a, int b) { return static_cast<uint64_t>(a) << 32 | static_cast<uint32_t>(b); }

}  // namespace

Terms::Terms(int ranks)
    : ranks_(ranks), words_((ranks + 63) / 64), sets_(words_ * ranks, 0), scaled_(ranks, false) {
  for (int rank = 0; rank < ranks; ++rank) {
    sets_[rank * words_ + rank / 64] |= uint64_t{1} << (rank % 64);
  }
}

int Terms::sum(int a, int b, Kind kind) {
  auto& known = known_[static_cast<int>(kind)];
  const auto found = known.find(key(a, b));
  if (found != known.end()) return found->second;
  if (scaled_[a] != scaled_[b] || encoded(a) || encoded(b)) return none;
  for (size_t i = 0; i < words_; ++i) {
    if (sets_[a * words_ + i] & sets_[b * words_ + i]) return none;
  }
  const int term = static_cast<int>(sets_.size() / words_);
  for (size_t i = 0; i < words_; ++i) {
    sets_.push_back(sets_[a * words_ + i] | sets_[b * words_ + i]);
  }
  scaled_.push_back(scaled_[a]);
  known.emplace(key(a, b), term);
  return term;
}

int Terms::scale(int term, Kind kind) {
  if (scaled_[term] || encoded(term)) return none;
  auto& known = known_[static_cast<int>(kind)];
  const auto [place, is_new] = known.emplace(key(term, none), static_cast<int>(scaled_.size()));
  if (is_new) add_like(term, true);
  return place->second;
}

int Terms::encode(int term, const void* codec) {
  if (encoded(term)) return none;
  const auto [place, is_new] =
      encoded_.emplace(std::pair(term, codec), static_cast<int>(scaled_.size()));
  if (is_new) {
    encoded_from_.emplace(place->second, place->first);
    add_like(term, scaled_[term]);
  }
  return place->second;
}

int Terms::decode(int term, const void* codec) const {
  const auto found = encoded_from_.find(term);
  const bool fits = found != encoded_from_.end() && found->second.second == codec;
  return fits ? found->second.first : none;
}

// Adds a term of the same ranks.
void Terms::add_like(int term, bool scaled) {
  const std::vector<uint64_t> same = set(term);
  sets_.insert(sets_.end(), same.begin(), same.end());
  scaled_.push_back(scaled);
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

void append(std::vector<Run>& runs, const Run& run) {
  if (run.begin == run.end) return;
  if (!runs.empty()) {
    Run& last = runs.back();
    const bool continues = last.index + (last.end - last.begin) == run.index;
    if (last.end == run.begin && last.term == run.term && (continues || run.term == Terms::none)) {
      last.end = run.end;
      return;
    }
  }
  runs.push_back(run);
}

void append(std::vector<Run>& runs, const std::vector<Run>& more) {
  for (const Run& run : more) append(runs, run);
}

void SymbolicMemory::read(int64_t offset, int64_t count, std::vector<Run>& value) const {
  value.clear();
  const int64_t end = offset + count;
  auto run = std::upper_bound(runs_.begin(), runs_.end(), offset,
                              [](int64_t at, const Run& each) { return at < each.end; });
  int64_t at = offset;
  for (; at < end && run != runs_.end() && run->begin < end; ++run) {
    if (run->begin > at) append(value, {at - offset, run->begin - offset, 0, Terms::none});
    const int64_t begin = std::max(run->begin, at);
    at = std::min(run->end, end);
    append(value, {begin - offset, at - offset, run->index + (begin - run->begin), run->term});
  }
  if (at < end) append(value, {at - offset, count, 0, Terms::none});
}

void SymbolicMemory::write(int64_t offset, const std::vector<Run>& value) {
  if (value.empty()) return;
  const int64_t end = offset + value.back().end;
  // Neighbours that touch are taken in, so that what continues them is joined.
  const auto first = std::lower_bound(runs_.begin(), runs_.end(), offset,
                                      [](const Run& each, int64_t at) { return each.end < at; });
  auto last = first;
  while (last != runs_.end() && last->begin <= end) ++last;
  std::vector<Run> replacement;
  if (first != last && first->begin < offset) {
    append(replacement, {first->begin, std::min(first->end, offset), first->index, first->term});
  }
  for (const Run& run : value) {
    if (run.term == Terms::none) continue;
    append(replacement, {offset + run.begin, offset + run.end, run.index, run.term});
  }
  if (first != last && (last - 1)->end > end) {
    const Run& tail = *(last - 1);
    const int64_t begin = std::max(tail.begin, end);
    append(replacement, {begin, tail.end, tail.index + (begin - tail.begin), tail.term});
  }
  const auto common = std::min<std::ptrdiff_t>(last - first, replacement.size());
  std::copy(replacement.begin(), replacement.begin() + common, first);
  if (common < last - first) {
    runs_.erase(first + common, last);
  } else {
    runs_.insert(last, replacement.begin() + common, replacement.end());
  }
}

}  // namespace hetcomm
