#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hetcomm {

class Codec;

// Sums of contributions as symbols. A term is the contribution of one rank (the rank is the number
// of the term), a sum of two terms, a scaled term or an encoded term. Equal terms mean equal bits
// for every operation and dtype. So another order of additions, or a rounding in between, gives
// another term. A sum by an island's engine is a term of its own.
class Terms {
 public:
  // How a sum of two terms is made: by one step; by adding to a sum of the same step, which is
  // rounded once; by an engine. A scale: of a stored value (pair), or by an engine before it
  // rounds.
  enum class Kind : uint8_t { pair, same_step, island };
  static constexpr int none = -1;  // nothing written, or a rank counted twice

  explicit Terms(int ranks);

  int sum(int a, int b, Kind kind);  // none if they share a rank, or if only one is scaled
  int scale(int term, Kind kind);    // none if it is scaled
  // Changes the representation by a codec, and back. None if the term is encoded already, or by
  // another codec. Encoded terms have no sums and no scale. What each `step` encodes with loss
  // decodes to a term of its own.
  int encode(int term, const Codec* codec, const void* step);
  int decode(int term, const Codec* codec) const;
  int roundings(int term) const { return terms_[term].roundings; }  // by lossy codecs, one by one
  int exact(int term) const;  // the term that was encoded with loss, or the term itself
  bool scaled(int term) const { return terms_[term].scaled; }
  bool encoded(int term) const { return codec(term) != nullptr; }
  const Codec* codec(int term) const { return terms_[term].codec; }
  bool all_ranks(int term) const;          // and not encoded
  std::string shared(int a, int b) const;  // the ranks in both, "{0-3, 7}"
  std::string ranks(int term) const;       // "{0-3, 7}"

 private:
  struct Term {
    bool scaled = false;
    int roundings = 0;
    int decoded = none;   // of an encoded term
    int original = none;  // of a term that was encoded with loss
    const Codec* codec = nullptr;
  };

  std::string list(const std::vector<uint64_t>& set) const;
  std::vector<uint64_t> set(int term) const;
  void add_like(int term, const Term& added);  // with the same ranks

  int ranks_;
  size_t words_;
  std::vector<uint64_t> sets_;                                         // words_ for each term
  std::vector<Term> terms_;                                            // by number
  std::map<std::tuple<int, const Codec*, const void*>, int> encoded_;  // by the arguments
  // By kind and the numbers of both terms. Of a scaled term the other number is none.
  std::unordered_map<uint64_t, int> known_[3];
};

// Bytes [begin, end) of a buffer hold the logical bytes index, index + 1, ... of a term.
struct Extent {
  int64_t begin, end;
  int64_t index;
  int term;

  bool operator==(const Extent&) const = default;
};
using Extents = std::vector<Extent>;  // in order, without overlap

// Appends an extent, joined to the last one if it continues the last one.
void append(Extents& extents, const Extent& extent);

// The symbolic contents of one buffer.
class SymbolicMemory {
 public:
  // The extents of [offset, offset + count); begin and end are relative to offset. Gaps have the
  // term none.
  void read(int64_t offset, int64_t count, Extents& value) const;
  // Overwrites [offset, ...) by a value in the form of read().
  void write(int64_t offset, const Extents& value);

 private:
  Extents extents_;
};

}  // namespace hetcomm
