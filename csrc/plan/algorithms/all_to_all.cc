#include <algorithm>
#include <iterator>

#include "plan/algorithms/algorithms.h"
#include "plan/algorithms/segments.h"

namespace hetcomm {
namespace {

// The block of each pair of ranks in the sender's input and in the receiver's output.
class Blocks {
 public:
  explicit Blocks(const PlanBuilder& builder) : builder_(builder), spec_(builder.spec()) {}

  int64_t count(int from, int to) const {
    return spec_.block(from, to, builder_.topology().size());
  }
  Range source(int from, int to) const {
    const int64_t first = offset(sent_, from, to, [&](int other) { return count(from, other); });
    return builder_.input(first, count(from, to));
  }
  Range target(int from, int to) const {
    const int64_t first = offset(received_, to, from, [&](int other) { return count(other, to); });
    return builder_.output(first, count(from, to));
  }

 private:
  using Offsets = std::map<int, std::vector<int64_t>>;  // of the blocks of some ranks

  template <typename Count>
  int64_t offset(Offsets& offsets, int rank, int other, const Count& count_of) const {
    if (spec_.splits.empty()) return other * spec_.count;
    std::vector<int64_t>& of_rank = offsets[rank];
    if (of_rank.empty()) of_rank.push_back(0);
    while (std::ssize(of_rank) <= other) {
      of_rank.push_back(of_rank.back() + count_of(static_cast<int>(of_rank.size()) - 1));
    }
    return of_rank[other];
  }

  const PlanBuilder& builder_;
  const Spec& spec_;
  mutable Offsets sent_, received_;
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

// Rank r sends to r + 1, r + 2, ... in turn, so that no receiver gets everything at once. With
// unequal blocks a rank knows only its own row and column of the splits. Every pair of ranks then
// exchanges a message, even an empty one. So ranks notice when their splits disagree.
void direct(PlanBuilder& builder) {
  const Topology& topology = builder.topology();
  const int size = topology.size();
  const Blocks blocks(builder);
  const bool equal = builder.spec().splits.empty();
  std::vector<int> ranks;  // whose pieces or messages are needed
  for (int island : builder.islands()) {
    for (int rank : topology.island(island)) {
      if ((equal && !topology.native(rank)) || builder.builds(rank)) ranks.push_back(rank);
    }
  }
  const Shifts shifts(size, ranks);
  std::map<int, std::vector<Piece>> pieces;  // by island
  for (int shift = 0; shift < size; ++shift) {
    for (int from : shifts.senders(shift)) {
      const int to = shifts.receiver(from, shift), island = topology.island_of(from);
      const bool joined = topology.island_of(to) == island && equal;
      if (!joined && !builder.builds(from) && !builder.builds(to)) continue;
      const Range source = blocks.source(from, to), target = blocks.target(from, to);
      if (joined) {
        pieces[island].push_back({.from = from, .to = to, .source = source, .target = target});
      } else {
        builder.transfer(from, source, to, target, !equal);
      }
    }
  }
  for (int island : builder.islands()) builder.island_all_to_all(island, pieces[island]);
}

// An island has an agent for each foreign rank: its members in turn, member j for member j where
// islands are alike. The agent collects the blocks for that rank from all members and sends them in
// one message. The wire carries the same bytes in fewer messages, but blocks move once more inside
// their island.
class Aggregation {
 public:
  explicit Aggregation(PlanBuilder& builder) : builder_(builder) {
    for (const std::vector<int>& members : topology_.islands()) {
      before_.push_back(before_.back() + static_cast<int>(members.size()));
    }
  }

  void build() {
    for (int island : builder_.islands()) collect(island);
    for (int island = 0; island < std::ssize(topology_.islands()); ++island) deliver(island);
  }

 private:
  const std::vector<int>& members(int island) const { return topology_.island(island); }
  // Of the blocks of all members for one rank, or from it.
  int64_t parcel(int island) const { return std::ssize(members(island)) * spec_.count; }
  Range block(const Range& parcel, size_t member) const {
    return parcel.part(static_cast<int64_t>(member) * spec_.count, spec_.count);
  }

  // Foreign ranks take agents in the order of their islands after this one.
  int agent(int island, int to) const {
    const int target = topology_.island_of(to), all = topology_.size();
    const int turn = (before_[target] - before_[island + 1] + all) % all;
    const std::vector<int>& agents = members(island);
    return agents[(turn + topology_.index_in_island(to)) % agents.size()];
  }

  // Foreign ranks in that order.
  std::vector<int> foreign(int island) const {
    std::vector<int> ranks;
    for (int other : islands_from(builder_, island, true)) {
      if (other == island) continue;
      ranks.insert(ranks.end(), members(other).begin(), members(other).end());
    }
    return ranks;
  }

  void collect(int island) {
    const std::vector<int>& own = members(island);
    std::vector<int> built;
    std::copy_if(own.begin(), own.end(), std::back_inserter(built),
                 [this](int rank) { return builder_.builds(rank); });
    // Whose pieces for `to` are listed.
    const auto senders = [&](int to) -> const std::vector<int>& {
      return builder_.lists_all(to) ? own : built;
    };
    std::vector<Piece> pieces;
    for (int to : own) {
      for (int from : senders(to)) {
        pieces.push_back({.from = from,
                          .to = to,
                          .source = blocks_.source(from, to),
                          .target = blocks_.target(from, to)});
      }
    }
    for (int to : foreign(island)) {
      if (own.size() == 1) break;
      const int collector = agent(island, to);
      const Range& packed = packed_[{island, to}] = builder_.scratch(collector, parcel(island));
      for (int from : senders(collector)) {
        pieces.push_back({.from = from,
                          .to = collector,
                          .source = blocks_.source(from, to),
                          .target = block(packed, topology_.index_in_island(from))});
      }
    }
    builder_.island_all_to_all(island, pieces);
  }

  void deliver(int island) {
    const std::vector<int>& own = members(island);
    const bool consecutive = own.back() - own.front() + 1 == std::ssize(own);
    for (int to : builder_.builds_island(island) ? foreign(island) : builder_.ranks()) {
      const int from = agent(island, to);
      if (topology_.island_of(to) == island) continue;
      if (!builder_.builds(from) && !builder_.builds(to)) continue;
      const auto known = packed_.find({island, to});
      Range sent = blocks_.source(from, to);
      sent.count = parcel(island);
      if (known != packed_.end()) sent = known->second;
      const Range arrived = consecutive ? builder_.output(own.front() * spec_.count, sent.count)
                                        : builder_.scratch(to, sent.count);
      builder_.transfer(from, sent, to, arrived);
      for (size_t i = 0; i < own.size() && !consecutive; ++i) {
        builder_.copy(to, block(arrived, i), blocks_.target(own[i], to));
      }
    }
  }

  PlanBuilder& builder_;
  const Topology& topology_ = builder_.topology();
  const Spec& spec_ = builder_.spec();
  const Blocks blocks_{builder_};
  std::vector<int> before_ = {0};                // ranks of earlier islands, by island
  std::map<std::pair<int, int>, Range> packed_;  // parcels at agents, by island and receiver
};

void aggregated(PlanBuilder& builder) { Aggregation(builder).build(); }

}  // namespace

std::vector<Algorithm> all_to_all_algorithms() {
  return {
      {Collective::all_to_all, "direct", "native inside islands, one message per pair between them",
       any, direct},
      {Collective::all_to_all, "aggregated",
       "each island collects what it has for a foreign rank, and sends it in one message",
       short_blocks, aggregated},
  };
}

}  // namespace hetcomm
