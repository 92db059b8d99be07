#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hetcomm {

// What one rank's links offer (see Link::offer()), by peer; empty without a link. Kept in runs, as
// most peers have the same history.
class LinkOffers {
 public:
  explicit LinkOffers(const std::vector<std::string>& by_peer);
  static LinkOffers unpack(const std::string& bytes, int size);  // throws Error(invalid_argument)

  std::string pack() const;
  const std::string& operator[](int peer) const;

 private:
  struct Run {
    int end;  // after its last peer
    std::string offer;
  };
  LinkOffers() = default;

  std::vector<Run> runs_;
};

// Whether the two ends of a link offer differently. `all`: by rank.
bool differ(const std::vector<LinkOffers>& all, int rank, int peer);
// Whether no link's ends do.
bool agree(const std::vector<LinkOffers>& all);
// The spread of a group's counter-offers (see Link::counter()): none in the first round.
uint64_t spread_of(const std::string& group, int round);

}  // namespace hetcomm
