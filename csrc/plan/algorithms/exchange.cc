#include "plan/algorithms/exchange.h"

namespace hetcomm {

int lanes_of_segments(const PlanBuilder& builder, const std::vector<int64_t>& shares) {
  if (!builder.lossy()) return 0;
  return shares.empty() ? 1 : 2;
}

Scratch::Scratch(PlanBuilder& builder, const Chunks& chunks, int cut, const Segment& segment,
                 const std::vector<int64_t>& shares, int lanes)
    : messages(builder), wholes(builder) {
  const int whole_lanes = lanes_of_segments(builder, shares);
  const int number = chunks.number_with(cut);
  const int64_t whole = chunks.largest_piece(segment);
  for (int island : builder.islands()) {
    const int64_t room = shares.empty() ? whole
                                        : largest_share(whole, shares[island + 1] - shares[island],
                                                        shares.back(), builder.spec().dtype);
    messages.add(island, segment.owners[island], room, number, lanes);
    wholes.add(island, segment.owners[island], whole, number, whole_lanes);
  }
}

namespace {

// Extra islands give their sums to their neighbours. Then for each place the sum is where this
// returns, and later sums are in the target.
std::vector<Range> fold(const Exchange& e, const Pairs& pairs) {
  std::vector<Range> sums;
  for (int place = 0; place < pairs.places(); ++place) {
    const int island = pairs.island(place);
    sums.push_back(e.partial(island));
    if (place >= pairs.extra()) continue;
    const Range received = e.received(island, pairs.rounds(), e.target.count);
    e.builder.transfer(e.owner(island + 1), e.partial(island + 1), e.owner(island), received);
    e.builder.reduce(e.owner(island), {sums[place], received}, e.target);
    sums[place] = e.target;
  }
  return sums;
}

void unfold(const Exchange& e, const Pairs& pairs) {
  for (int place = 0; place < pairs.extra(); ++place) {
    const int island = pairs.island(place);
    e.builder.transfer(e.owner(island), e.target, e.owner(island + 1), e.target);
  }
}

}  // namespace

// Recursive doubling (Thakur, Rabenseifner and Gropp, 2005): both owners of a pair add up their
// sums, the one of the lower place first, so all owners get the same bits.
void doubling(const Exchange& e) {
  const Pairs pairs(e.islands());
  std::vector<Range> sums = fold(e, pairs);
  for (int round = 0; round < pairs.rounds(); ++round) {
    const int distance = 1 << round;
    for (int low = 0; low < pairs.places(); ++low) {
      const int high = low + distance, a = pairs.island(low), b = pairs.island(high);
      if ((low & distance) != 0 || !(e.builds(a) || e.builds(b))) continue;
      const Range from_b = e.received(a, round, e.target.count),
                  from_a = e.received(b, round, e.target.count);
      e.builder.transfer(e.owner(a), sums[low], e.owner(b), from_a);
      e.builder.transfer(e.owner(b), sums[high], e.owner(a), from_b);
      e.builder.reduce(e.owner(a), {sums[low], from_b}, e.target);
      e.builder.reduce(e.owner(b), {from_a, sums[high]}, e.target);
    }
    std::fill(sums.begin(), sums.end(), e.target);
  }
  unfold(e, pairs);
}

// Recursive halving, then recursive doubling of the totals (Rabenseifner, 2004). In each round the
// owners of a pair exchange halves of what they still add up. One owner makes the total of a part.
void halving(const Exchange& e) {
  std::vector<Range> sums;
  for (int island = 0; island < e.islands(); ++island) sums.push_back(e.partial(island));
  const auto parts = [&](const Range& range, int first, int number) {
    return e.place(range, first, first + number, e.islands());
  };
  for (int distance = e.islands() / 2, round = 0; distance > 0; distance /= 2, ++round) {
    for (int low = 0; low < e.islands(); ++low) {
      const int high = low + distance;
      if ((low & distance) != 0 || !(e.builds(low) || e.builds(high))) continue;
      // The pair adds up 2 * distance parts: the lower one the first half of these.
      const int first = low / distance * distance, second = first + distance;
      const Range total_low = parts(e.target, first, distance),
                  total_high = parts(e.target, second, distance);
      const Range from_high = e.received(low, round, total_low.count),
                  from_low = e.received(high, round, total_high.count);
      e.builder.transfer(e.owner(low), parts(sums[low], second, distance), e.owner(high), from_low);
      e.builder.transfer(e.owner(high), parts(sums[high], first, distance), e.owner(low),
                         from_high);
      e.builder.reduce(e.owner(low), {parts(sums[low], first, distance), from_high}, total_low);
      e.builder.reduce(e.owner(high), {from_low, parts(sums[high], second, distance)}, total_high);
    }
    std::fill(sums.begin(), sums.end(), e.target);
  }
  for (int distance = 1; distance < e.islands(); distance *= 2) {
    for (int low = 0; low < e.islands(); ++low) {
      const int high = low + distance;
      if ((low & distance) != 0 || !(e.builds(low) || e.builds(high))) continue;
      const int first = low / distance * distance;
      const Range of_low = parts(e.target, first, distance),
                  of_high = parts(e.target, first + distance, distance);
      e.builder.transfer(e.owner(low), of_low, e.owner(high), of_low);
      e.builder.transfer(e.owner(high), of_high, e.owner(low), of_high);
    }
  }
}

Hops doubling_hops(const Topology& topology) {
  const Pairs pairs(static_cast<int>(topology.islands().size()));
  const int hops = pairs.rounds() + (pairs.extra() > 0 ? 2 : 0);
  return {hops, hops};
}

Hops halving_hops(const Topology& topology) {
  const int hops = 2 * Pairs(static_cast<int>(topology.islands().size())).rounds();
  return {hops, hops};
}

}  // namespace hetcomm
