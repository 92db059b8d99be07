#include <algorithm>

#include "plan/algorithms/algorithms.h"
#include "plan/algorithms/segments.h"

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

namespace {

// What crosses from one island to a rank of another: the same part of a block from each member.
class Parcel {
 public:
  Parcel(PlanBuilder& builder, int island, int to, int chunks)
      : members_(builder.topology().island(island)), to_(to), count_(builder.spec().count) {
    const auto size = static_cast<int64_t>(members_.size());
    const std::vector<int>& there = builder.topology().island(builder.topology().island_of(to));
    const auto place = std::find(there.begin(), there.end(), to) - there.begin();
    agent_ = members_[place % size];
    if (size == 1) return;
    const int64_t most = size * largest_part(count_, chunks, builder.spec().dtype);
    packed_ = builder.scratch(agent_, most);
    lands_ = chunks == 1 && members_.back() - members_.front() + 1 == size;
    if (!lands_) arrived_ = builder.scratch(to, most);
  }

  // The agent has its own blocks too, so that every message is one range.
  void pack(const Range& part, std::vector<Piece>& pieces) const {
    if (members_.size() == 1) return;
    for (size_t i = 0; i < members_.size(); ++i) {
      pieces.push_back({.from = members_[i],
                        .to = agent_,
                        .source = in(Space::input, part, to_ * count_),
                        .target = slice(packed_, i, part.count)});
    }
  }

  void send(PlanBuilder& builder, const Range& part) const {
    if (members_.size() == 1) {
      return builder.transfer(agent_, in(Space::input, part, to_ * count_), to_, target(0, part));
    }
    const auto all = static_cast<int64_t>(members_.size()) * part.count;
    const Range where = lands_ ? target(0, part) : arrived_;
    builder.transfer(agent_, {packed_.space, packed_.offset, all}, to_,
                     {where.space, where.offset, all});
    if (lands_) return;
    for (size_t i = 0; i < members_.size(); ++i) {
      builder.copy(to_, slice(arrived_, i, part.count), target(i, part));
    }
  }

 private:
  static Range slice(const Range& whole, size_t index, int64_t count) {
    return {whole.space, whole.offset + static_cast<int64_t>(index) * count, count};
  }
  Range target(size_t index, const Range& part) const {
    return in(Space::output, part, members_[index] * count_);
  }

  const std::vector<int>& members_;
  const int to_;
  const int64_t count_;
  int agent_ = -1;
  bool lands_ = false;  // in one piece, where it belongs
  Range packed_{Space::scratch, 0, 0}, arrived_{Space::scratch, 0, 0};
};

}  // namespace

// Every foreign rank has an agent in an island, which collects its blocks from all members: rail
// by rail, so that member j serves the foreign islands' members j. The wire carries the same bytes
// in one message for each foreign rank of an island instead of one for each pair; blocks move once
// more inside their island for it.
void all_to_all_aggregated(PlanBuilder& builder) {
  const Topology& topology = builder.topology();
  const Spec& spec = builder.spec();
  const int size = topology.size(), islands = static_cast<int>(topology.islands().size());
  const int chunks = chunk_count(topology, spec, spec.count * size);
  const Blocks blocks(spec, size);
  std::vector<std::vector<Parcel>> parcels(islands);
  for (int island = 0; island < islands; ++island) {
    for (int shift = 1; shift < islands; ++shift) {
      for (int to : topology.island((island + shift) % islands)) {
        parcels[island].emplace_back(builder, island, to, chunks);
      }
    }
  }
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const Range piece = part({Space::input, 0, spec.count}, chunk, chunks, spec.dtype);
    for (int island = 0; island < islands; ++island) {
      std::vector<Piece> pieces;
      for (int from : chunk == 0 ? topology.island(island) : std::vector<int>{}) {
        for (int to : topology.island(island)) {
          pieces.push_back({.from = from,
                            .to = to,
                            .source = blocks.source(from, to),
                            .target = blocks.target(from, to)});
        }
      }
      for (const Parcel& parcel : parcels[island]) parcel.pack(piece, pieces);
      builder.island_all_to_all(island, pieces);
    }
    for (const std::vector<Parcel>& sent : parcels) {
      for (const Parcel& parcel : sent) parcel.send(builder, piece);
    }
  }
}

}  // namespace hetcomm
