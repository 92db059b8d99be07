#include "plan/algorithms/algorithms.h"

namespace hetcomm {
namespace {

// The block of each pair of ranks in the sender's input and in the receiver's output.
class Blocks {
 public:
  explicit Blocks(const PlanBuilder& builder)
      : builder_(builder),
        spec_(builder.spec()),
        size_(builder.topology().size()),
        sources_(size_ * size_),
        targets_(size_ * size_) {
    const int size = size_;
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
    return builder_.input(sources_[from * size_ + to], count(from, to));
  }
  Range target(int from, int to) const {
    return builder_.output(targets_[from * size_ + to], count(from, to));
  }

 private:
  const PlanBuilder& builder_;
  const Spec& spec_;
  const int size_;
  std::vector<int64_t> sources_, targets_;
};

// The lower bound of a size class, so that all sizes of a class get the same answer.
constexpr int64_t kLongBlocks = 1 << 20;

std::string short_blocks(const Topology& topology, const Spec& spec) {
  if (!spec.splits.empty()) return "needs blocks of one size; a rank knows only its own splits";
  if (largest_buffer(spec, topology.size()) >= kLongBlocks) {
    return "is for buffers below 1 MiB; longer blocks are worth a message each";
  }
  return at_least_two_islands(topology, spec);
}

// Pricing the messages of all pairs of more ranks would take seconds.
constexpr int kManyRanks = 256;

std::string few_pairs(const Topology& topology, const Spec& spec) {
  if (topology.size() <= kManyRanks || !short_blocks(topology, spec).empty()) return "";
  return "has a message for each pair of ranks; short blocks of more than 256 ranks are aggregated";
}

// Rank r sends to r + 1, r + 2, ... in turn, so that no receiver gets everything at once. With
// unequal blocks a rank knows only its own row and column of the splits. Every pair of ranks then
// exchanges a message, even an empty one. So ranks notice when their splits disagree.
void direct(PlanBuilder& builder) {
  const Topology& topology = builder.topology();
  const int size = topology.size();
  const Blocks blocks(builder);
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

// An island has an agent for each foreign rank: its members in turn, member j for member j where
// islands are alike. The agent collects the blocks for that rank from all members and sends them in
// one message. The wire carries the same bytes in fewer messages, but blocks move once more inside
// their island.
void aggregated(PlanBuilder& builder) {
  const Topology& topology = builder.topology();
  const Blocks blocks(builder);
  const int64_t count = builder.spec().count;
  const int islands = static_cast<int>(topology.islands().size());
  const auto slice = [count](const Range& whole, size_t index) {
    return whole.part(static_cast<int64_t>(index) * count, count);
  };
  struct Parcel {
    int agent, to;
    Range packed;  // a block from each member
  };
  for (int island = 0; island < islands; ++island) {
    const std::vector<int>& members = topology.island(island);
    const auto all = static_cast<int64_t>(members.size()) * count;
    std::vector<Piece> pieces;
    for (int from : members) {
      for (int to : members) {
        pieces.push_back({.from = from,
                          .to = to,
                          .source = blocks.source(from, to),
                          .target = blocks.target(from, to)});
      }
    }
    std::vector<Parcel> parcels;
    for (int shift = 1; shift < islands; ++shift) {
      for (int to : topology.island((island + shift) % islands)) {
        const int agent = members[parcels.size() % members.size()];
        const bool alone = members.size() == 1;
        parcels.push_back(
            {agent, to, alone ? blocks.source(agent, to) : builder.scratch(agent, all)});
        for (size_t i = 0; i < members.size() && !alone; ++i) {
          pieces.push_back({.from = members[i],
                            .to = agent,
                            .source = blocks.source(members[i], to),
                            .target = slice(parcels.back().packed, i)});
        }
      }
    }
    builder.island_all_to_all(island, pieces);
    const bool consecutive = members.back() - members.front() + 1 == std::ssize(members);
    for (const auto& [agent, to, packed] : parcels) {
      const Range arrived =
          consecutive ? builder.output(members.front() * count, all) : builder.scratch(to, all);
      builder.transfer(agent, packed, to, arrived);
      for (size_t i = 0; i < members.size() && !consecutive; ++i) {
        builder.copy(to, slice(arrived, i), blocks.target(members[i], to));
      }
    }
  }
}

}  // namespace

std::vector<Algorithm> all_to_all_algorithms() {
  return {
      {Collective::all_to_all, "direct", "native inside islands, one message per pair between them",
       few_pairs, direct},
      {Collective::all_to_all, "aggregated",
       "each island collects what it has for a foreign rank, and sends it in one message",
       short_blocks, aggregated},
  };
}

}  // namespace hetcomm
