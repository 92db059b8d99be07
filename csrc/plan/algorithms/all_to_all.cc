#include "plan/algorithms/algorithms.h"

namespace hetcomm {
namespace {

// Where the block of each pair of ranks lies in the sender's input and in the receiver's output.
class Blocks {
 public:
  Blocks(const Spec& spec, int size)
      : spec_(spec), size_(size), sources_(size * size), targets_(size * size) {
    for (int rank = 0; rank < size; ++rank) {
      for (int other = 1; other < size; ++other) {
        const int sent = rank * size + other, received = other * size + rank;
        sources_[sent] = sources_[sent - 1] + count(rank, other - 1);
        targets_[received] = targets_[received - size] + count(other - 1, rank);
      }
    }
  }

  int64_t count(int from, int to) const {
    return spec_.splits.empty() ? spec_.count : spec_.splits[from * size_ + to];
  }
  Range source(int from, int to) const {
    return {Space::input, sources_[from * size_ + to], count(from, to)};
  }
  Range target(int from, int to) const {
    return {Space::output, targets_[from * size_ + to], count(from, to)};
  }

 private:
  const Spec& spec_;
  const int size_;
  std::vector<int64_t> sources_, targets_;
};

}  // namespace

// Rank r sends to r + 1, r + 2, ... in turn, so that no receiver gets everything at once. With
// unequal blocks a rank need know only its own row and column of the splits: every pair of ranks
// then exchanges a message, an empty one too, so that ranks which disagree notice.
void all_to_all_direct(PlanBuilder& builder) {
  const Topology& topology = builder.topology();
  const int size = topology.size();
  const Blocks blocks(builder.spec(), size);
  const bool equal = builder.spec().splits.empty();
  std::vector<std::vector<Piece>> pieces(topology.islands().size());
  for (int shift = 0; shift < size; ++shift) {
    for (int from = 0; from < size; ++from) {
      const int to = (from + shift) % size;
      const Range source = blocks.source(from, to), target = blocks.target(from, to);
      const int island = topology.island_of(from);
      if (topology.island_of(to) == island && equal) {
        pieces[island].push_back({.from = from, .to = to, .source = source, .target = target});
      } else {
        builder.transfer(from, source, to, target, !equal);
      }
    }
  }
  for (size_t island = 0; island < pieces.size(); ++island) {
    builder.island_all_to_all(static_cast<int>(island), pieces[island]);
  }
}

}  // namespace hetcomm
