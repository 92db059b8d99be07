#include "plan/algorithms/segments.h"

#include <numeric>
#include <stdexcept>

#include "plan/algorithms/routes.h"
#include "plan/cost.h"

namespace hetcomm {
namespace {

// The least size of a chunk: latency then stays small beside transfer time. Where the slowest
// uplink needs longer for it, chunks are smaller, because nothing overlaps the first one.
constexpr int64_t kChunkBytes = 512 << 10;
// On emulated uplinks of 150 to 1000 Mbit/s, 1 MiB took 76 to 84 ms before chunks depended on rates
// (and before replays let ranks take turns), then 60 ms. At 1 Gbit/s and more, 128 and 256 KiB were
// no faster.
constexpr int64_t kChunkMicroseconds = 4200;
constexpr int64_t kLeastChunkBytes = 64 << 10;
// The number of chunks is small, so that issuing steps stays cheap ...
constexpr int64_t kMostChunks = 32;
// ... unless larger chunks would need more scratch of a rank than this. The last chunk has up to a
// fifth more.
constexpr int64_t kMostScratch = 53 << 20;
constexpr int64_t kMostBoundedChunks = 8192;
// Staging is bounded. Chunks that pass through staging stay smaller.
constexpr int64_t kStagedChunkBytes = 4 << 20;
constexpr int64_t kMostStagedChunks = 1024;
// A block that is passed on has chunks, so that both of its messages are under way at once.
constexpr int kRelayedChunks = 4;
// Smaller shards are not worth a message of their own.
constexpr int64_t kShardBytes = 1024;
// Shorter chunks are cut at whole KiB, so that the cuts of islands of unlike sizes coincide.
constexpr int64_t kEvenBytes = 64 << 10;
// Plans of many ranks have messages of at least this size, if there are several chunks and scratch
// needs no more. With shorter ones they would take long to make, to price and to issue.
constexpr int kFewRanks = 32;
constexpr int64_t kMessageBytes = 128 << 10;
// Only one member of an even island has the rest of a chunk: less than a part of so many.
constexpr int64_t kLeastUnits = 16;

int64_t line_count(Dtype dtype) { return kCacheLine / static_cast<int64_t>(size_of(dtype)); }

int64_t round_to(int64_t value, int64_t grain) { return (value + grain / 2) / grain * grain; }
int64_t round_up(int64_t value, int64_t grain) { return (value + grain - 1) / grain * grain; }

// The uplink in MB/s, so that the sum over an island of any size fits.
int64_t weight(const Topology& topology, int rank) {
  return std::max<int64_t>(1, topology.uplink(rank) / 1'000'000);
}

int64_t uplink_weight(const Topology& topology, const std::vector<int>& ranks) {
  int64_t sum = 0;
  for (int rank : ranks) sum += weight(topology, rank);
  return sum;
}

bool even(const Topology& topology, const std::vector<int>& members) {
  return std::all_of(members.begin(), members.end(), [&](int rank) {
    return weight(topology, rank) == weight(topology, members[0]);
  });
}

// Elements that all even islands cut into whole cache lines alike, so that their cuts coincide. One
// line if `count` has few of these.
int64_t common_unit(const Topology& topology, int64_t count, Dtype dtype) {
  const int64_t line = line_count(dtype);
  int64_t unit = line;
  for (const std::vector<int>& members : topology.islands()) {
    if (even(topology, members)) unit = std::lcm(unit, line * static_cast<int64_t>(members.size()));
    if (unit * kLeastUnits > count) return line;
  }
  return unit;
}

// The cut of `count` elements among the members of an island. In an even island all shards are
// equal, but for the last one, which also has the rest: native libraries want equal shards. Any
// other shard is weighted by its uplink. `unit`: see common_unit().
struct Shards {
  std::vector<int64_t> ends;

  Shards(const Topology& topology, const std::vector<int>& members, int64_t count, Dtype dtype,
         int64_t unit) {
    const auto size = static_cast<int64_t>(members.size());
    const auto element = static_cast<int64_t>(size_of(dtype));
    const int64_t grain = kShardBytes / element, share = count / unit * unit / size;
    const int64_t total = uplink_weight(topology, members);
    if (even(topology, members) && unit % (size * line_count(dtype)) == 0 && share >= grain &&
        count * element >= kEvenBytes) {
      for (int64_t i = 1; i < size; ++i) ends.push_back(i * share);
      ends.push_back(count);
      return;
    }
    int64_t sum = 0;
    for (int rank : members) {
      sum += weight(topology, rank);
      ends.push_back(sum == total ? count
                                  : std::min(count, round_to(scaled(count, sum, total), grain)));
    }
  }
  int owner(const std::vector<int>& members, int64_t at) const {
    return members[std::upper_bound(ends.begin(), ends.end(), at) - ends.begin()];
  }
};

// The most of `whole` that one member of an island has, rounded up.
int64_t largest_shard(const Topology& topology, const std::vector<int>& members, int64_t whole) {
  int64_t heaviest = 0;
  for (int rank : members) heaviest = std::max(heaviest, weight(topology, rank));
  const int64_t total = uplink_weight(topology, members);
  return static_cast<int64_t>((static_cast<__int128>(whole) * heaviest + total - 1) / total);
}

// The least bytes of a message if there are several chunks: the slowest wire is busy with it for as
// long as an end needs to issue a send and a receive.
int64_t least_message(const Topology& topology) {
  const CostParameters assumed;
  int64_t least = INT64_MAX;
  for (size_t island = 0; island < topology.islands().size(); ++island) {
    const std::vector<int>& members = topology.islands()[island];
    const int peer = topology.islands()[(island + 1) % topology.islands().size()][0];
    if (topology.same_host(members[0], peer)) continue;
    const bool tcp = topology.fabric_between(members[0], peer) == Fabric::ethernet;
    const int64_t gap = tcp ? assumed.message_gap_tcp : assumed.message_gap_rdma;
    for (int rank : members) {
      least = std::min(least, scaled(topology.uplink(rank), 2 * gap, 1'000'000'000));
    }
  }
  const int64_t floor = topology.size() > kFewRanks ? kMessageBytes : 1;
  return least == INT64_MAX ? floor : std::max(floor, least);
}

// The least number of chunks that a rank has scratch for: it keeps `bytes` of a buffer in one
// chunk, and kSlots of more chunks at a time.
int64_t bounded_chunks(__int128 bytes) {
  return bytes <= kMostScratch ? 1 : static_cast<int64_t>(bytes * kSlots / kMostScratch) + 1;
}

int64_t least_chunk(const Topology& topology) {
  if (topology.hosts().size() == 1) return kChunkBytes;
  int64_t slowest = INT64_MAX;  // uplink of a known rate
  const auto add = [&](int64_t uplink) {
    if (uplink > 0) slowest = std::min(slowest, uplink);
  };
  for (const std::vector<int>& members : topology.islands()) {
    int64_t sum = 0;
    for (int rank : members) sum += topology.uplink(rank);
    add(sum);
  }
  for (const std::vector<Zone>& zones : topology.zones()) {
    if (zones.size() == 1) continue;  // no host is outside
    for (const Zone& zone : zones) add(zone.uplink);
  }
  return std::clamp(slowest / 1'000'000 * kChunkMicroseconds, kLeastChunkBytes, kChunkBytes);
}

// `bounded`: see bounded_chunks(). `shortest`: the least bytes of one of several
// chunks.
int chunk_count(const Topology& topology, int64_t bytes, int64_t bounded, int64_t shortest) {
  const int64_t least = std::max(least_chunk(topology), shortest);
  const int64_t chunks = std::max(std::clamp<int64_t>(bytes / least, 1, kMostChunks),
                                  std::min({bounded, bytes / kChunkBytes, kMostBoundedChunks}));
  const int64_t staged = std::min(bytes / std::max(kStagedChunkBytes, shortest), kMostStagedChunks);
  if (staged <= chunks) return static_cast<int>(chunks);
  for (int rank = 0; rank < topology.size(); ++rank) {
    if (topology.stages_between_islands(rank, bytes / chunks)) return static_cast<int>(staged);
  }
  return static_cast<int>(chunks);
}

void keep_unique(std::vector<int64_t>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

std::vector<Segment> segments_of(const Topology& topology, int64_t count, Dtype dtype) {
  std::vector<Shards> shards;
  std::vector<int64_t> cuts = {0};
  const int64_t unit = common_unit(topology, count, dtype);
  for (const std::vector<int>& members : topology.islands()) {
    shards.emplace_back(topology, members, count, dtype, unit);
    cuts.insert(cuts.end(), shards.back().ends.begin(), shards.back().ends.end());
  }
  keep_unique(cuts);
  std::vector<Segment> found;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    Segment segment{cuts[i], cuts[i + 1] - cuts[i], {}};
    for (size_t island = 0; island < shards.size(); ++island) {
      segment.owners.push_back(
          shards[island].owner(topology.island(static_cast<int>(island)), cuts[i]));
    }
    found.push_back(std::move(segment));
  }
  return found;
}

}  // namespace

std::vector<Segment> block_segments(const Topology& topology, int64_t count, Dtype dtype) {
  const int islands = static_cast<int>(topology.islands().size());
  std::vector<Shards> shards;
  for (const std::vector<int>& members : topology.islands()) {
    const int64_t foreign = topology.size() - static_cast<int64_t>(members.size());
    shards.emplace_back(topology, members, foreign * count, dtype,
                        line_count(dtype) * static_cast<int64_t>(members.size()));
  }
  std::vector<Segment> found;
  std::vector<int64_t> passed(islands, 0);  // elements of foreign blocks before this block
  for (int rank = 0; rank < topology.size(); ++rank) {
    const int own_island = topology.island_of(rank);
    std::vector<int64_t> cuts = {0, count};
    for (int island = 0; island < islands; ++island) {
      if (island == own_island) continue;
      const std::vector<int64_t>& ends = shards[island].ends;
      auto end = std::upper_bound(ends.begin(), ends.end(), passed[island]);
      for (; end != ends.end() && *end < passed[island] + count; ++end) {
        cuts.push_back(*end - passed[island]);
      }
    }
    keep_unique(cuts);
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const int part = static_cast<int>(i);
      Segment segment{rank * count + cuts[i], cuts[i + 1] - cuts[i], {}, rank, part};
      for (int island = 0; island < islands; ++island) {
        segment.owners.push_back(
            island == own_island
                ? rank
                : shards[island].owner(topology.island(island), passed[island] + cuts[i]));
      }
      found.push_back(std::move(segment));
    }
    for (int island = 0; island < islands; ++island) {
      if (island != own_island) passed[island] += count;
    }
  }
  return found;
}

Range shares_of(const Range& range, int64_t from, int64_t to, int64_t of) {
  const int64_t line = line_count(range.dtype);
  const int64_t first = range.offset / static_cast<int64_t>(size_of(range.dtype));
  auto cut = [&](int64_t at) {
    if (at == 0 || at == of) return at == 0 ? first : first + range.count;
    const int64_t exact = first + scaled(range.count, at, of);
    return std::clamp(round_to(exact, line), first, first + range.count);
  };
  return range.part(cut(from) - first, cut(to) - cut(from));
}

int block_chunks(const PlanBuilder& builder, size_t segments, const Routes& routes) {
  const Topology& topology = builder.topology();
  const Spec& spec = builder.spec();
  const int islands = static_cast<int>(topology.islands().size());
  const int64_t block = spec.count * static_cast<int64_t>(size_of(spec.dtype));
  int64_t blocks = 0;  // that a rank keeps
  for (int island = 0; island < islands; ++island) {
    const std::vector<int>& members = topology.islands()[island];
    const auto size = static_cast<int64_t>(members.size());
    const auto share = [&](int64_t all) { return largest_shard(topology, members, all); };
    // Its own block from the other islands, and its share of the foreign blocks: their sums in its
    // island, and what it encodes.
    const int64_t kept = islands +
                         share(routes.kept_blocks(island, has_reduction(spec.collective))) +
                         share(topology.size() - size) * ((size > 1) + builder.lossy());
    blocks = std::max(blocks, kept);
  }
  const int chunks = chunk_count(topology, block * topology.size(),
                                 bounded_chunks(static_cast<__int128>(block) * blocks),
                                 static_cast<int64_t>(segments) * least_message(topology));
  return routes.relays() ? std::max(chunks, kRelayedChunks) : chunks;
}

Chunks::Chunks(const PlanBuilder& builder, int64_t count, int64_t parts, int64_t kept, int64_t of)
    : dtype_(builder.spec().dtype), count_(count), in_parts_(builder.spec().feedback) {
  const Topology& topology = builder.topology();
  const int64_t bytes = count * static_cast<int64_t>(size_of(dtype_));
  const std::vector<Segment> whole = segments_of(topology, count, dtype_);
  int64_t shard = 0;
  for (const std::vector<int>& members : topology.islands()) {
    shard = std::max(shard, largest_shard(topology, members, bytes));
  }
  number_ = chunk_count(topology, bytes, bounded_chunks(static_cast<__int128>(shard) * kept / of),
                        static_cast<int64_t>(whole.size()) * parts * least_message(topology));
  if (in_parts_ || number_ == 1) {
    segments_.push_back(whole);
    return;
  }
  const int64_t unit = common_unit(topology, count / number_, dtype_);
  length_ = count / number_ / unit * unit;
  number_ = static_cast<int>(std::max<int64_t>(1, (count + length_ / 2) / length_));
  const int64_t last = count - (number_ - 1) * length_;
  if (number_ > 1 && last != length_) {
    segments_.push_back(segments_of(topology, length_, dtype_));
  }
  segments_.push_back(segments_of(topology, last, dtype_));
}

Range Chunks::piece(int chunk, const Segment& segment) const {
  if (in_parts_) return part_of(segment, chunk, number_, dtype_);
  return Range{Space::output, 0, 0, dtype_}.part(chunk * length_ + segment.offset, segment.count);
}

int64_t Chunks::largest_piece(const Segment& segment) const {
  return in_parts_ ? largest_part(segment.count, number_, dtype_) : segment.count;
}

int64_t largest_share(int64_t count, int64_t shares, int64_t of, Dtype dtype) {
  if (shares == 0) return 0;
  return std::min(count, scaled(count, shares, of) + 1 + line_count(dtype));
}

Slots::Slots(PlanBuilder& builder, int rank, int64_t count, int chunks, int lanes)
    : slots_(std::min(chunks, kSlots)), size_(round_up(count, line_count(builder.spec().dtype))) {
  room_ = builder.scratch(rank, lanes * slots_ * size_);
}

void OwnerSlots::add(int island, int owner, int64_t count, int chunks, int lanes) {
  slots_.try_emplace(island, *builder_, owner, count, chunks, lanes);
}

Range OwnerSlots::at(int island, int chunk, int64_t count, int lane) const {
  const auto slots = slots_.find(island);
  if (slots != slots_.end()) return slots->second.at(chunk, count, lane);
  if (builder_->builds_island(island)) {
    throw std::logic_error("expected add() of slots for island " + std::to_string(island));
  }
  return {Space::scratch, 0, count, builder_->spec().dtype};
}

std::vector<int> islands_from(const PlanBuilder& builder, int first, bool all) {
  std::vector<int> islands = builder.islands();
  if (all) {
    islands.resize(builder.topology().islands().size());
    std::iota(islands.begin(), islands.end(), 0);
  }
  std::rotate(islands.begin(), std::lower_bound(islands.begin(), islands.end(), first),
              islands.end());
  return islands;
}

std::vector<int> Shifts::senders(int shift) const {
  std::vector<int> senders;
  for (int position : positions_) {
    senders.push_back(position);
    senders.push_back((position - shift + n_) % n_);
  }
  std::sort(senders.begin(), senders.end());
  senders.erase(std::unique(senders.begin(), senders.end()), senders.end());
  return senders;
}

std::vector<int64_t> island_uplinks(const Topology& topology) {
  std::vector<int64_t> uplinks;
  for (const std::vector<int>& members : topology.islands()) {
    uplinks.push_back(uplink_weight(topology, members));
  }
  return uplinks;
}

std::vector<int64_t> shares_by_uplink(const std::vector<int64_t>& uplinks) {
  // Both of two send a part and a total, which together are the whole: shares do not matter.
  if (uplinks.size() == 2) return {0, 1, 2};
  // In the time t of the exchange an island moves t b = 1 + (k-2) w. An island with t b < 1 gets
  // w = 0. The w of the other m islands add up to 1. Hence t = (k - 2 + m) / (sum of their b).
  std::vector<int64_t> fastest = uplinks;
  std::sort(fastest.rbegin(), fastest.rend());
  int64_t numerator = static_cast<int64_t>(uplinks.size()) - 2, denominator = 0;
  for (int64_t uplink : fastest) {
    if (denominator > 0 && numerator * uplink <= denominator) break;
    ++numerator;
    denominator += uplink;
  }
  std::vector<int64_t> ends = {0};
  for (int64_t uplink : uplinks) {
    ends.push_back(ends.back() + std::max<int64_t>(0, numerator * uplink - denominator));
  }
  return ends;
}

}  // namespace hetcomm
