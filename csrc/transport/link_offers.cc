#include "transport/link_offers.h"

#include <algorithm>

#include "base/packing.h"
#include "base/status.h"

namespace hetcomm {

LinkOffers::LinkOffers(const std::vector<std::string>& by_peer) {
  for (size_t peer = 0; peer < by_peer.size(); ++peer) {
    if (ranges_.empty() || ranges_.back().offer != by_peer[peer])
      ranges_.push_back({0, by_peer[peer]});
    ranges_.back().end = static_cast<int>(peer) + 1;
  }
}

std::string LinkOffers::pack() const {
  Packer packer;
  for (const PeerRange& range : ranges_)
    packer.put(static_cast<uint64_t>(range.end)).put(range.offer);
  return packer.take();
}

LinkOffers LinkOffers::unpack(const std::string& bytes, int size) {
  Unpacker from(bytes);
  LinkOffers offers;
  for (int begin = 0; begin < size;) {
    const uint64_t end = from.number();
    if (end <= static_cast<uint64_t>(begin) || end > static_cast<uint64_t>(size)) {
      throw Error(Code::invalid_argument, "offers of links: expected ranges of peers up to " +
                                              std::to_string(size) + ", got one from " +
                                              std::to_string(begin) + " to " + std::to_string(end) +
                                              "; run the same hetcomm version on every rank");
    }
    begin = static_cast<int>(end);
    offers.ranges_.push_back({begin, from.text()});
  }
  from.end();
  return offers;
}

const std::string& LinkOffers::operator[](int peer) const {
  return std::upper_bound(ranges_.begin(), ranges_.end(), peer,
                          [](int wanted, const PeerRange& range) { return wanted < range.end; })
      ->offer;
}

}  // namespace hetcomm
