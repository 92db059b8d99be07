#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace hetcomm {

// Sums of ranks' contributions as symbols. A term is the contribution of one rank (its number is
// that of the rank), the sum of two terms, or a term scaled. What is added in another order, or
// rounded in between, is another term, and so is a sum within an island, which belongs to its
// engine: equal terms mean equal bits, whatever the operation and the dtype.
class Terms {
 public:
  // How a sum of two came about: in one step; added to a sum of the same step, which is rounded
  // once; by an engine. And a scale: of a stored value, or by an engine, before it rounds.
  enum class Kind : uint8_t { pair, same_step, island };
  static constexpr int none = -1;  // of what was never written, or of a rank counted twice

  explicit Terms(int ranks);

  int sum(int a, int b, Kind kind);  // none if they share a rank or only one is scaled
  int scale(int term, Kind kind);    // none if it is scaled
  // In another representation, which `codec` names by its address; and back. None if the term is
  // encoded already, or not by this codec. Encoded terms have no sums and no scale.
  int encode(int term, const void* codec);
  int decode(int term, const void* codec) const;
  bool scaled(int term) const { return scaled_[term]; }
  bool encoded(int term) const { return encoded_from_.contains(term); }
  bool all_ranks(int term) const;          // in plain representation
  std::string shared(int a, int b) const;  // the ranks in both, "{0-3, 7}"
  std::string ranks(int term) const;       // "{0-3, 7}"

 private:
  std::string list(const std::vector<uint64_t>& set) const;
  std::vector<uint64_t> set(int term) const;
  void add_like(int term, bool scaled);

  int ranks_;
  size_t words_;
  std::vector<uint64_t> sets_;                               // words_ for each term
  std::vector<bool> scaled_;                                 // likewise
  std::map<std::pair<int, const void*>, int> encoded_;       // by term and codec
  std::map<int, std::pair<int, const void*>> encoded_from_;  // by encoded term
  std::unordered_map<uint64_t, int>
      known_[3];  // by kind and the two numbers; scaled: the other none
};

// Bytes [begin, end) of a buffer hold the logical bytes index, index + 1, ... of a term.
struct Run {
  int64_t begin, end;
  int64_t index;
  int term;

  bool operator==(const Run&) const = default;
};

// Runs in order, without overlap; appending joins a run to the last one where it continues it.
void append(std::vector<Run>& runs, const Run& run);
void append(std::vector<Run>& runs, const std::vector<Run>& more);

// The symbolic contents of one buffer.
class SymbolicMemory {
 public:
  // The runs of [offset, offset + count), begin and end relative to offset; term none in gaps.
  void read(int64_t offset, int64_t count, std::vector<Run>& value) const;
  // Overwrites [offset, ...) with a value as read() makes it.
  void write(int64_t offset, const std::vector<Run>& value);

 private:
  std::vector<Run> runs_;
};

}  // namespace hetcomm
