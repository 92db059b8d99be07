#include "plan/island_cost.h"

#include <algorithm>

namespace hetcomm {
namespace {

using Amount = __int128;  // bytes; no plan overflows it

constexpr int64_t kSlot = 128 << 10;     // of the shared memory engine
constexpr int64_t kOneRound = 64 << 10;  // an all_reduce of less over all members has one round

// Bytes moved by the busiest member and by all members. The engine exchanges through slots of
// shared memory, which stay in the cache. To publish or to fetch an element is a read and a write.
// To reduce an element over n members is n reads and a write. Buffers beyond the cache lie in
// memory. There a write reads the cache line first, unless it was just read.
struct Work {
  Amount touched, touched_by_all;
  Amount memory, memory_by_all;
  Amount buffers_of_all;
  Amount published;  // by the member that publishes most
};

Work work_of(Collective collective, Amount n, Amount bytes) {
  const Amount share = bytes / n, rest = bytes - share;
  auto alike = [n](Amount touched, Amount memory, Amount buffers, Amount published) {
    return Work{touched, n * touched, memory, n * memory, n * buffers, published};
  };
  switch (collective) {
    case Collective::all_reduce:  // publish all, reduce a share, fetch the rest
      return alike(4 * bytes + (n + 1) * share, 2 * bytes, bytes, 2 * rest);
    case Collective::reduce_scatter:
      return alike(2 * rest + (n + 1) * share, bytes + 2 * share, bytes + share, rest);
    case Collective::reduce:
      return {(n + 1) * bytes, (3 * n - 1) * bytes, 3 * bytes,
              (n + 2) * bytes, (n + 1) * bytes,     bytes};
    case Collective::all_gather:
      return alike(4 * share + 2 * rest, share + 2 * bytes, share + bytes, share);
    case Collective::broadcast:
      return {2 * bytes, 2 * n * bytes, 2 * bytes, (2 * n - 1) * bytes, n * bytes, bytes};
    case Collective::gather:
      return {2 * bytes, 2 * bytes + 2 * rest, share + 2 * bytes,
              3 * bytes, 2 * bytes + share,    share};
    case Collective::scatter:
      return {2 * bytes, 2 * bytes + 2 * rest, bytes + 2 * share,
              3 * bytes, 2 * bytes + share,    rest};
    default:  // all_to_all: publish and fetch the rest, copy a share
      return alike(2 * share + 4 * rest, 3 * bytes, 2 * bytes, rest);
  }
}

int64_t rounds_of(Collective collective, Amount n, Amount bytes, Amount published) {
  auto slots = [](Amount length) { return static_cast<int64_t>((length + kSlot - 1) / kSlot); };
  if (collective != Collective::all_reduce) return std::max<int64_t>(1, slots(published));
  return bytes * n <= kOneRound ? 1 : 2 * slots(published / 2);
}

// A step as a mix of two collectives: `single`, in which one member has everything, to the share
// part / whole, and `even` for the rest.
struct Likeness {
  Collective even, single;
  int64_t bytes;  // of the largest buffer
  int64_t part = 0, whole = 1;
};

int64_t most(const std::vector<int64_t>& bytes) {
  return *std::max_element(bytes.begin(), bytes.end());
}

Likeness likeness_of(const Topology& topology, int64_t n, const Step& step) {
  std::vector<int64_t> out(n), in(n);
  int64_t total = 0;
  for (const Piece& piece : step.pieces) {
    total += piece.source.bytes();
    if (piece.from >= 0) out[topology.index_in_island(piece.from)] += piece.source.bytes();
    if (piece.to >= 0) in[topology.index_in_island(piece.to)] += piece.source.bytes();
  }
  Likeness like{Collective::all_reduce, Collective::all_reduce, total};
  const bool reduces = step.kind->reduces, to_all = step.kind->to_all;
  if ((reduces && to_all) || total == 0 || n < 2) return like;
  if (!reduces && !to_all) {
    const int64_t largest = std::max(most(out), most(in));
    const bool gathers = most(in) >= most(out);
    like = {Collective::all_to_all, gathers ? Collective::gather : Collective::scatter, largest};
    like.part = n * largest - total;
    like.whole = (n - 1) * largest;
  } else {
    const bool gathers = to_all;
    like.even = gathers ? Collective::all_gather : Collective::reduce_scatter;
    like.single = gathers ? Collective::broadcast : Collective::reduce;
    like.part = n * most(gathers ? out : in) - total;
    like.whole = (n - 1) * total;
  }
  like.part = std::clamp<int64_t>(like.part, 0, like.whole);
  return like;
}

// The time by the constants, without a profile.
int64_t assumed_time(const CostParameters& parameters, const IslandSize& size,
                     Collective collective, int64_t bytes) {
  const int64_t n = size.members, used = std::min(size.ranks, size.cores);
  const Work work = work_of(collective, n, bytes);
  // The island has a fair part of the processors, which share the work of all members.
  auto by_all = [&](Amount amount, int64_t bandwidth) {
    return duration(amount, bandwidth, size.ranks, used * n);
  };
  const int64_t in_cache = std::max(duration(work.touched, parameters.cache_bandwidth),
                                    by_all(work.touched_by_all, parameters.cache_bandwidth));
  const int64_t uncached = std::max(duration(work.memory, parameters.memory_bandwidth),
                                    by_all(work.memory_by_all, parameters.memory_bandwidth));
  const Amount buffers = work.buffers_of_all * size.ranks / (used * n);  // of each processor
  const Amount beyond = std::max<Amount>(0, buffers - parameters.cache_size);
  const int64_t in_memory = beyond == 0 ? 0 : static_cast<int64_t>(uncached * beyond / buffers);
  const int64_t rounds = rounds_of(collective, n, bytes, work.published);
  const int64_t moving = std::max(in_cache, in_memory);
  if (size.ranks <= size.cores) {
    return parameters.island_latency + n * parameters.member_latency +
           (rounds - 1) * parameters.round_latency + moving;
  }
  const int64_t turns = parameters.turn_latency * size.ranks / size.cores;
  return parameters.island_turn_latency * size.ranks * size.ranks / (size.cores * size.cores) +
         (rounds - 1) * turns + moving;
}

IslandSize island_size(const Topology& topology, int rank) {
  const int host = topology.host_of(rank);
  return {static_cast<int64_t>(topology.island(topology.island_of(rank)).size()),
          static_cast<int64_t>(topology.hosts()[host].size()), topology.processors(host)};
}

}  // namespace

int64_t island_time(const CostParameters& parameters, const IslandSize& size, Collective collective,
                    int64_t bytes) {
  const Profile::Island* measured =
      parameters.profile ? parameters.profile->nearest(size) : nullptr;
  if (measured == nullptr) return assumed_time(parameters, size, collective, bytes);
  const int64_t time = measured->curves.at(collective).at(bytes);
  if (measured->size == size) return time;
  const Amount assumed = assumed_time(parameters, size, collective, bytes);
  const int64_t alike = assumed_time(parameters, measured->size, collective, bytes);
  return static_cast<int64_t>(time * assumed / std::max<int64_t>(alike, 1));
}

int64_t island_time(const CostParameters& parameters, const Topology& topology, int rank,
                    const Step& step) {
  const IslandSize size = island_size(topology, rank);
  const Likeness like = likeness_of(topology, size.members, step);
  const int64_t even = island_time(parameters, size, like.even, like.bytes);
  if (like.part == 0) return even;
  const int64_t single = island_time(parameters, size, like.single, like.bytes);
  return even + static_cast<int64_t>(static_cast<Amount>(single - even) * like.part / like.whole);
}

}  // namespace hetcomm
