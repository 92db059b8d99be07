#pragma once

#include <string>
#include <vector>

namespace hetcomm {

// The offers of one rank's links (see Link::offer()), by peer; empty without a link. Stored as
// ranges of peers with equal offers, because most links have the same history.
class LinkOffers {
 public:
  explicit LinkOffers(const std::vector<std::string>& by_peer);
  static LinkOffers unpack(const std::string& bytes, int size);  // throws Error(invalid_argument)

  std::string pack() const;
  const std::string& operator[](int peer) const;

 private:
  struct PeerRange {
    int end;  // after the last peer
    std::string offer;
  };
  LinkOffers() = default;

  std::vector<PeerRange> ranges_;
};

}  // namespace hetcomm
